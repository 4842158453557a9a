// The side panel: tabs of what belongs to the chosen stream.

import { Answers } from "./answers.js";
import { Details } from "./details.js";
import { h } from "./dom.js";
import { Log } from "./log.js";
import { recall, remember } from "./remember.js";
import { SettingsForm } from "./settings.js";

const TABS = [
  ["answers", "Answers", Answers],
  ["settings", "Settings", SettingsForm],
  ["log", "Alerts", Log],
  ["details", "Details", Details],
];

export class Panel {
  constructor(holder) {
    this.holder = holder;
    this.parts = new Map();
    const list = h("div", { class: "tabs", role: "tablist", "aria-label": "About the chosen stream" });
    holder.append(list);
    for (const [key, title, Part] of TABS) {
      const tab = h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `part-${key}`, "data-testid": `tab-${key}`, onclick: () => this.open(key) }, title);
      const part = h("section", { class: `part ${key}`, role: "tabpanel", id: `part-${key}`, "aria-labelledby": `tab-${key}` });
      list.append(tab);
      holder.append(part);
      this.parts.set(key, { tab, part, made: new Part(part, (count) => this._badge(tab, count)) });
    }
    list.addEventListener("keydown", (event) => this._key(event));
    this.open(recall("tab", "answers"));
  }

  get answers() {
    return this.parts.get("answers").made;
  }

  open(key) {
    const wanted = this.parts.has(key) ? key : "answers";
    remember("tab", wanted);
    for (const [name, { tab, part, made }] of this.parts) {
      const shown = name === wanted;
      tab.setAttribute("aria-selected", String(shown));
      tab.tabIndex = shown ? 0 : -1;
      part.hidden = !shown;
      if (shown) this._badge(tab, 0);
      made.shown?.(shown);
    }
  }

  /** A number on a tab that is not open; 0 takes it away. */
  _badge(tab, count) {
    const open = tab.getAttribute("aria-selected") === "true";
    if (open || !count) delete tab.dataset.count;
    else tab.dataset.count = String(Number(tab.dataset.count ?? 0) + count);
  }

  _key(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const keys = TABS.map(([key]) => key);
    const now = keys.findIndex((key) => this.parts.get(key).tab === document.activeElement);
    const next = keys[(now + direction + keys.length) % keys.length];
    this.open(next);
    this.parts.get(next).tab.focus();
  }
}
