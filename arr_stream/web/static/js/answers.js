// Questions to the model and its answers, with the cells that each answer used.

import { api, attempt, links } from "./api.js";
import { clockTime, h, icon, say, setText } from "./dom.js";
import { emit, History, on, onChosenStatus, store } from "./store.js";

const KEPT = 200;
const WHEN = [
  ["now", "once, now"],
  ["every", "at an interval"],
  ["change", "when the scene changes"],
];

/** Number of an answer, in events and in stored answers. */
const keyOf = (answer) => `${answer.answer ?? `${answer.frame_index}:${answer.question}`}`;

export class Answers {
  constructor(part, badge) {
    this.badge = badge;
    this.entries = new Map();
    this.pinned = null;
    this._build(part);
    on("chosen", () => this._chosen());
    onChosenStatus(() => this._plan());
    on("asking", (event) => this._mine(event, () => this._entry(event)));
    on("text", (event) => this._mine(event, () => this._piece(event)));
    on("answer", (event) => this._mine(event, () => this._whole(event)));
    // The server may have begun anew, and with it the numbers of its answers.
    on("follow", () => this._anew());
    on("info", () => this._model());
  }

  _build(part) {
    this.question = h("input", { type: "text", maxlength: "2000", placeholder: "Question about the video", "aria-label": "Question", "data-testid": "ask-input", autocomplete: "off" });
    this.history = new History("questions", this.question);
    this.when = h("select", { "aria-label": "When to answer", "data-testid": "ask-when" }, WHEN.map(([value, label]) => h("option", { value }, label)));
    this.every = h("input", { type: "number", min: "1", max: "3600", step: "1", value: "5", "aria-label": "Seconds between answers", "data-testid": "ask-every" });
    this.seconds = h("label", { class: "every", hidden: true }, "every ", this.every, " s");
    this.when.addEventListener("change", () => (this.seconds.hidden = this.when.value !== "every"));
    this.button = h("button", { type: "submit", class: "primary", "data-testid": "ask-submit" }, "Ask");
    this.limits = h("p", { class: "hint", hidden: true }, "This small model knows drawn shapes and signs alone. For a real one, start the server with --model ORG/NAME or --endpoint URL.");
    this.plan = h("p", { class: "plan", hidden: true });
    this.form = h("form", { class: "ask" }, this.question, h("div", { class: "row" }, this.when, this.seconds, this.button), this.limits, this.plan);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._ask();
    });
    this.save = h("a", { class: "button small", download: "answers.json", "data-testid": "answers-save" }, icon("save"), "Save answers");
    this.list = h("ol", { class: "answers-list", "data-testid": "answers", "aria-label": "Answers, newest first", tabindex: "-1" });
    this.nothing = h("p", { class: "hint" }, "No answers yet.");
    part.append(this.form, h("div", { class: "row" }, this.save), this.nothing, this.list);
    this._model();
  }

  _model() {
    const model = store.info?.model;
    for (const control of [this.question, this.when, this.every, this.button]) control.disabled = !model;
    this.limits.hidden = model !== "tiny";
    if (model) this.question.placeholder = `Ask ${model}`;
  }

  _mine(event, action) {
    if (event.stream === store.chosen) action();
    else if (event.type === "answer") this.badge(1);
  }

  async _ask() {
    const question = this.question.value.trim();
    if (!question || !store.chosen) return;
    const when = this.when.value;
    const every_seconds = Math.max(1, Number(this.every.value) || 5);
    const body = { question, when, ...(when === "every" && { every_seconds }) };
    if (!(await attempt(() => api.ask(store.chosen, body)))) return;
    this.history.add(question);
    this.question.value = "";
  }

  _plan() {
    const { plan } = store.status;
    const text = plan ? `“${plan.question}” ${plan.when === "every" ? `every ${plan.every_seconds} s` : "when the scene changes"}` : "";
    this.plan.hidden = !plan;
    if (this.plan.dataset.text === text) return;
    this.plan.dataset.text = text;
    const stop = h("button", { type: "button", class: "small", "data-testid": "ask-stop", onclick: () => attempt(() => api.stopAsking(store.chosen)) }, "Stop");
    this.plan.replaceChildren(...(plan ? [h("span", {}, text), stop] : []));
  }

  _chosen() {
    this._anew();
    if (store.status) this._plan();
  }

  _anew() {
    this.pinned = null;
    this._unmark();
    this._list();
  }

  /** List the stream's answers that the server keeps. */
  async _list() {
    const id = store.chosen;
    this.entries.clear();
    this.list.replaceChildren();
    this.nothing.hidden = false;
    if (id) this.save.href = links.answers(id);
    else this.save.removeAttribute("href");
    if (!id || !store.info?.model) return;
    const kept = await attempt(() => api.answers(id));
    if (!Array.isArray(kept) || id !== store.chosen) return;
    for (const answer of kept.slice(-KEPT)) this._whole(answer, false);
  }

  /** Return the entry of an answer, created on first use. */
  _entry(answer) {
    const key = keyOf(answer);
    if (this.entries.has(key)) return this.entries.get(key);
    const [question, text, facts] = ["question", "text", "facts"].map((part) => h("p", { class: part }));
    setText(facts, "thinking …");
    const entry = { question, text, facts, cells: [] };
    setText(question, answer.question ?? "");
    entry.item = h("li", { class: "answer", "data-state": "asking" }, question, text, facts);
    this.entries.set(key, entry);
    this.list.prepend(entry.item);
    this.nothing.hidden = true;
    while (this.entries.size > KEPT) {
      const [oldest, { item }] = this.entries.entries().next().value;
      this.entries.delete(oldest);
      item.remove();
    }
    return entry;
  }

  _piece({ answer, text, question }) {
    const entry = this._entry({ answer, question });
    if (entry.item.dataset.state === "asking") entry.text.append(text);
  }

  _whole(answer, fresh = true) {
    const entry = this._entry(answer);
    if (entry.item.dataset.state === "done") return;
    entry.item.dataset.state = "done";
    entry.item.dataset.finish = answer.finish ?? "";
    entry.cells = answer.cells ?? [];
    setText(entry.question, answer.question);
    setText(entry.text, answer.text || answer.error || "No answer");
    const tokens_second = answer.decode_ms > 0 ? ` · ${(answer.answer_tokens / (answer.decode_ms / 1000)).toFixed(1)} tokens/s` : "";
    const when = answer.made_unix ? `${clockTime(answer.made_unix)} · ` : "";
    const cut = { length: " · cut at the limit", cancelled: " · cancelled", failed: " · failed" }[answer.finish] ?? "";
    entry.facts.replaceChildren(h("span", {}, `${when}frame ${answer.frame_index} · ${answer.visual_tokens} visual tokens${tokens_second}${cut}`), this._cellsButton(entry));
    if (answer.note) entry.item.append(h("p", { class: "hint" }, answer.note));
    if (answer.finish === "failed" && answer.error) entry.item.append(h("p", { class: "problem" }, answer.error));
    entry.item.addEventListener("pointerenter", () => this._mark(entry));
    entry.item.addEventListener("pointerleave", () => this._unmark());
    if (fresh) {
      this.badge(1);
      say(`Answer: ${answer.text}`);
    }
  }

  _cellsButton(entry) {
    if (!entry.cells.length) return "";
    const button = h("button", { type: "button", class: "small toggle", "aria-pressed": "false", title: "Show the cells that the answer used" }, icon("eye-cells"), `${entry.cells.length} cells`);
    button.addEventListener("click", () => {
      const pin = this.pinned !== entry;
      for (const other of this.list.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
      this.pinned = pin ? entry : null;
      button.setAttribute("aria-pressed", String(pin));
      this._mark(pin ? entry : null);
    });
    return button;
  }

  _mark(entry) {
    if (!store.chosen) return;
    emit("cells", { stream: store.chosen, cells: entry?.cells.length ? entry.cells : null });
    this.marking = store.chosen;
  }

  _unmark() {
    if (this.marking) emit("cells", { stream: this.marking, cells: this.pinned?.cells ?? null });
  }
}
