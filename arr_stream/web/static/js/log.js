// What happened: alerts with their clips, notices, changes of state.

import { api, links } from "./api.js";
import { bytes, clockTime, h, icon, say, setText, shortName } from "./dom.js";
import { on, store } from "./store.js";
import { attempt, toast } from "./toasts.js";

const KEPT = 300;
const TOLD_STATES = new Set(["live", "stalled", "reconnecting", "ended", "failed"]);

export class Log {
  constructor(part, badge) {
    this.badge = badge;
    this.states = new Map();
    this.rules = h("p", { class: "hint" });
    this.list = h("ol", { class: "log-list", "aria-label": "What happened, newest first", "data-testid": "log" });
    this.clips = h("ul", { class: "clips", "data-testid": "clips" });
    this.clipsTitle = h("h3", { hidden: true }, "Clips");
    this.nothing = h("p", { class: "hint" }, "Nothing happened yet.");
    part.append(this.rules, this.nothing, this.list, this.clipsTitle, this.clips);
    on("info", () => this._rules());
    on("log", (event) => this._event(event));
    on("status", (status) => this._state(status));
    on("streams", (list) => this._forget(list));
    if (store.info) this._rules();
  }

  shown(open) {
    if (open) this._clips();
  }

  _rules() {
    const { alerts } = store.info;
    setText(this.rules, alerts.length ? `Watched for: ${alerts.join("; ")}` : "No alert rules. The server's --when sets them.");
  }

  _name(id) {
    const status = store.streams.get(id);
    return status ? shortName(status) : (id ?? "");
  }

  _event(event) {
    if (event.type === "alert") {
      this._add("alert", event, event.message ?? event.rule, event.clip);
      toast(`${this._name(event.stream)}: ${event.message ?? event.rule}`);
      this.badge(1);
      this._clips();
    } else if (event.type === "notice") {
      this._add("notice", event, event.text);
      // What was just asked for is not understood in full: whoever asked is looking elsewhere.
      if (event.text.startsWith("query ")) toast(event.text);
    } else if (event.type === "missed") {
      this._add("missed", event, `this page was too slow and missed ${event.count} events`);
    }
  }

  _state({ id, state, message }) {
    const before = this.states.get(id);
    this.states.set(id, state);
    if (before === undefined || before === state) return;
    say(`${this._name(id)}: ${state}`);
    if (!TOLD_STATES.has(state)) return;
    if (state === "live" && before === "paused") return;
    this._add("state", { stream: id }, message ? `${state}: ${message}` : state);
  }

  _forget(list) {
    const ids = new Set(list.map(({ id }) => id));
    for (const id of this.states.keys()) if (!ids.has(id)) this.states.delete(id);
  }

  _add(kind, { stream, made_unix }, text, clip = null) {
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
      h("span", { class: "said" }, text),
      clip ? h("a", { class: "button small", href: links.clip(clip), download: clip }, icon("save"), "clip") : null,
    );
    this.list.prepend(item);
    this.nothing.hidden = true;
    while (this.list.children.length > KEPT) this.list.lastElementChild.remove();
  }

  async _clips() {
    const clips = await attempt(() => api.clips());
    if (!Array.isArray(clips)) return;
    this.clipsTitle.hidden = !clips.length;
    const newest = [...clips].sort((a, b) => b.made_unix - a.made_unix).slice(0, 50);
    this.clips.replaceChildren(
      ...newest.map((clip) => h("li", {}, h("a", { href: links.clip(clip.name), download: clip.name }, clip.name), h("span", { class: "facts" }, `${bytes(clip.bytes)} · ${clockTime(clip.made_unix)}`))),
    );
  }
}
