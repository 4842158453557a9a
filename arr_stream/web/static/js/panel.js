// The side panel: tabs of the selected stream; this file has the log and the details.

import { Answers } from "./answers.js";
import { api, attempt, links } from "./api.js";
import { ARROWS, clockTime, duration, h, icon, say, setText, shortName, toast, withCode } from "./dom.js";
import { quality } from "./figures.js";
import { SettingsForm } from "./settings.js";
import { on, onChosenStatus, recall, remember, store } from "./store.js";

const MOST_ENTRIES = 300;
const TOLD_STATES = new Set(["live", "stalled", "reconnecting", "ended", "failed"]);
const APART = { target: "_blank", rel: "noopener" };
const FACTS = [
  ["Source", (s) => s.source],
  ["Kind", (s) => s.kind],
  ["State", (s) => (s.message ? `${s.state}: ${s.message}` : s.state)],
  ["Size", (s) => (s.size_wh ? `${s.size_wh[0]}×${s.size_wh[1]}` : "not known yet")],
  ["Source rate", (s) => (s.source_fps ? `${s.source_fps.toFixed(1)} a second` : "not known")],
  ["Processed", (s) => `${s.fps?.toFixed(1) ?? "0"} a second, ${s.frames} in all`],
  ["Skipped frames", (s) => String(s.dropped)],
  ["Reconnected", (s) => times(s.reconnects)],
  ["Stalled", (s) => times(s.stalls)],
  ["Processing", (s) => (Number.isFinite(s.latency_ms) ? `${s.latency_ms.toFixed(1)} ms a frame, median` : "–")],
  ["Delay to screen", (s) => (Number.isFinite(s.age_ms) ? `${s.age_ms.toFixed(0)} ms, median` : "–")],
  ["Quality", (s) => quality(s.state === "live" ? s.quality : null, { long: true })],
  ["Running for", (s) => duration(Date.now() / 1000 - s.started_unix)],
];

const times = (count) => (count === 1 ? "once" : count ? `${count} times` : "never");

/** The alert rules of the chosen stream, and a form for another one. */
class Rules {
  constructor(part) {
    this.list = h("ul", { class: "rules", "aria-label": "Alert rules", "data-testid": "rules" });
    this.field = h("select", { "aria-label": "Watch", "data-testid": "rule-field" });
    this.sign = h("select", { "aria-label": "Comparison" }, h("option", { value: ">" }, "above"), h("option", { value: "<" }, "below"));
    this.limit = h("input", { type: "number", min: "0", max: "1", step: "any", value: "0.6", required: true, "aria-label": "Limit, from 0 to 1", "data-testid": "rule-limit" });
    this.seconds = h("input", { type: "number", min: "0", max: "3600", step: "any", value: "2", required: true, "aria-label": "For how many seconds" });
    const add = h("button", { type: "submit", class: "small", "data-testid": "rule-add" }, "Add");
    const form = h("form", { class: "row every" }, "Alert if", this.field, "is", this.sign, this.limit, "for", this.seconds, "s", add);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const seconds = Number(this.seconds.value);
      const lasting = seconds ? ` for ${this.seconds.value}s` : "";
      this._set([...store.status.rules, `${this.field.value} ${this.sign.value} ${this.limit.value}${lasting}`]);
    });
    part.append(h("h3", {}, "Alert rules"), this.list, form);
    onChosenStatus((status) => this._show(status));
    on("chosen", () => store.status && this._show(store.status));
  }

  _set(rules) {
    attempt(() => api.rules(store.chosen, rules));
  }

  _show({ id, rules, query }) {
    const key = JSON.stringify([id, rules, query]);
    if (this.list.dataset.key === key) return;
    this.list.dataset.key = key;
    const named = (rule) => rule.replace(/^relevance\[(\d+)\]/, (field, place) => (query[place] ? `${field} (“${query[place]}”)` : field));
    const rows = rules.map((rule) => {
      const remove = h("button", { type: "button", class: "quiet small", "aria-label": `Remove ${rule}`, onclick: () => this._set(store.status.rules.filter((other) => other !== rule)) }, icon("cross"));
      return h("li", { class: "rule" }, h("span", {}, named(rule)), remove);
    });
    this.list.replaceChildren(...(rows.length ? rows : [h("li", { class: "hint" }, "None yet.")]));
    const fields = [
      ...(query.length ? [["relevance", "the score of any query"]] : []),
      ...(query.length > 1 ? query.map((label, place) => [`relevance[${place}]`, `the score of “${label}”`]) : []),
      ["motion", "the share of the picture that moves"],
    ];
    const { value } = this.field;
    this.field.replaceChildren(...fields.map(([name, label]) => h("option", { value: name }, label)));
    if (fields.some(([name]) => name === value)) this.field.value = value;
  }
}

/** Alerts, notices, changes of state. */
class Log {
  constructor(part, badge) {
    this.badge = badge;
    this.states = new Map();
    this.rules = new Rules(part);
    this.list = h("ol", { class: "log-list", "aria-label": "Events, newest first", "data-testid": "log" });
    this.nothing = h("p", { class: "hint" }, "No events yet.");
    part.append(h("h3", {}, "Events"), this.nothing, this.list);
    on("log", (event) => this._event(event));
    on("status", (status) => this._state(status));
    on("streams", () => this._forget());
  }

  _name(id) {
    const status = store.streams.get(id);
    return status ? shortName(status) : (id ?? "");
  }

  _event(event) {
    if (event.type === "alert") {
      const text = event.message ? `${event.rule} (${event.message})` : event.rule;
      this._add("alert", event, text);
      toast(`${this._name(event.stream)}: ${text}`, "alert");
      this.badge(1);
    } else if (event.type === "notice") {
      // Unknown words of a query are shown below it.
      if (!event.text.startsWith("query ")) this._add("notice", event, event.text);
    } else if (event.type === "missed") {
      this._add("missed", event, `this page was too slow and missed ${event.count} events`);
    }
  }

  _state({ id, state, message }) {
    const before = this.states.get(id);
    this.states.set(id, state);
    if (before === undefined || before === state) return;
    say(`${this._name(id)}: ${state}`);
    if (!TOLD_STATES.has(state) || (state === "live" && before === "paused")) return;
    this._add("state", { stream: id }, message ? `${state}: ${message}` : state);
  }

  _forget() {
    for (const id of this.states.keys()) if (!store.streams.has(id)) this.states.delete(id);
  }

  _add(kind, { stream, made_unix }, text) {
    const newest = this.list.firstElementChild;
    const key = `${kind} ${stream} ${text}`;
    if (newest?.dataset.key === key) {
      // The same again, such as a notice of each frame: counted, not repeated.
      newest.dataset.times = String(Number(newest.dataset.times ?? 1) + 1);
      return;
    }
    const item = h(
      "li",
      { class: "entry", "data-kind": kind, "data-key": key },
      h("span", { class: "when" }, clockTime(made_unix ?? Date.now() / 1000)),
      h("strong", { title: store.streams.get(stream)?.name }, this._name(stream)),
      h("span", { class: "said" }, withCode(text)),
    );
    this.list.prepend(item);
    this.nothing.hidden = true;
    while (this.list.children.length > MOST_ENTRIES) this.list.lastElementChild.remove();
  }
}

/** Facts about the selected stream, and addresses for other programs. */
class Details {
  constructor(part) {
    this.open = false;
    this.name = h("input", { type: "text", maxlength: "80", "aria-label": "Name of the stream", "data-testid": "stream-name" });
    this.name.addEventListener("change", () => store.chosen && attempt(() => api.change(store.chosen, { name: this.name.value.trim() })));
    this.values = FACTS.map(() => h("dd"));
    this.links = h("p", { class: "row links" });
    part.append(
      h("label", { class: "field" }, h("span", {}, "Name"), this.name),
      h("dl", { class: "facts-list" }, FACTS.flatMap(([title], place) => [h("dt", {}, title), this.values[place]])),
      this.links,
      h("p", { class: "hint" }, "Programs: ", h("a", { href: "openapi.json", ...APART }, "the interface"), ", ", h("a", { href: "metrics", ...APART }, "metrics")),
    );
    onChosenStatus(() => this._write());
    on("chosen", () => this._write());
  }

  shown(open) {
    this.open = open;
    this._write();
  }

  _write() {
    const { status } = store;
    if (!this.open) return;
    FACTS.forEach(([, told], place) => setText(this.values[place], status ? told(status) : "–"));
    if (!status) return;
    if (document.activeElement !== this.name) this.name.value = status.name;
    if (this.links.dataset.stream === status.id) return;
    this.links.dataset.stream = status.id;
    this.links.replaceChildren(
      h("a", { class: "button small", href: links.snapshot(status.id, "patches"), ...APART }, "Snapshot"),
      h("a", { class: "button small", href: links.records(status.id), download: `${status.id}.jsonl` }, "Records"),
    );
  }
}

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
    const list = h("div", { class: "tabs", role: "tablist", "aria-label": "About the selected stream" });
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
    const direction = ARROWS[event.key]?.[0];
    if (!direction) return;
    event.preventDefault();
    const keys = TABS.map(([key]) => key);
    const now = keys.findIndex((key) => this.parts.get(key).tab === document.activeElement);
    const next = keys[(now + direction + keys.length) % keys.length];
    this.open(next);
    this.parts.get(next).tab.focus();
  }
}
