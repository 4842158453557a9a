// The queries of a stream: the input with its history, and a chip for each query with its current score.

import { api, attempt } from "./api.js";
import { h, icon, say, setText, toast } from "./dom.js";
import { History, store } from "./store.js";

const EXAMPLE_BYTES = 10_000_000;
const SCORES_EVERY_MS = 200;
const UNDERSTOOD =
  "Queries may name colours, lightness, size, position and motion (“moving red on the left”), common objects if the server has a detector, and words to read in quotes. For anything else, mark a region on the picture, or choose an example picture.";
const history = new History("queries");

export class QueryBox {
  constructor(card, id) {
    this.id = id;
    this.form = card.querySelector("form.query");
    this.input = this.form.querySelector("[data-testid=query-input]");
    this.chips = card.querySelector(".chips");
    this.faults = card.querySelector(".faults");
    this.meters = [];
    this.shown = "";
    this.written_ms = 0;
    this.input.setAttribute("aria-label", "Query");
    this.input.placeholder = "Query, such as “moving red on the left”";
    history.attach(this.input);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._look(false);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !event.shiftKey) return;
      event.preventDefault();
      this._look(true);
    });
    const part = (action) => this.form.querySelector(`[data-action=${action}]`);
    part("also").addEventListener("click", () => this._look(true));
    part("history").addEventListener("click", () => this._openHistory());
    part("example").addEventListener("change", (event) => this._example(event.target));
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  get status() {
    return store.streams.get(this.id);
  }

  update(status) {
    const key = JSON.stringify([status.query, status.texts, status.region, status.example, status.not_understood]);
    if (key === this.shown) return;
    this.shown = key;
    this.meters = [];
    const chips = status.texts.map((text, place) => this._chip("text", text, () => this._without(place), () => this._edit(text)));
    if (status.region) {
      chips.push(this._chip("region", "marked region", () => this.mark(null)));
    }
    if (status.example) chips.push(this._chip("example", status.example, () => attempt(() => api.forgetExample(this.id))));
    this.chips.replaceChildren(...chips);
    const faults = Object.entries(status.not_understood).map(([text, fault]) => h("li", {}, `“${text}”: ${fault}`));
    this.faults.replaceChildren(...faults, faults.length ? h("li", { class: "hint" }, UNDERSTOOD) : "");
  }

  /** Show whether the marked region is visible on the newest picture. */
  follow(seen) {
    const chip = this.chips.querySelector("[data-kind=region]");
    if (chip) setText(chip.querySelector("span"), seen ? "marked region" : "marked region, not visible");
  }

  /** Scores are in the order of the status: texts, region, example. */
  scores(scores) {
    const now = performance.now();
    if (now - this.written_ms < SCORES_EVERY_MS || !this.meters.length) return;
    this.written_ms = now;
    this.meters.forEach((meter, place) => {
      const score = scores[place];
      meter.hidden = !Number.isFinite(score);
      if (!meter.hidden) meter.value = score;
    });
  }

  /** Set the region query `[x, y, w, h]`; null removes it. */
  async mark(xywh) {
    const body = { texts: this.status.texts, region: xywh && { xywh } };
    if (await attempt(() => api.query(this.id, body))) say(xywh ? "Region marked" : "Region removed");
  }

  _chip(kind, text, onremove, onclick = null) {
    const meter = h("meter", { min: 0, max: 1, "aria-label": `current score of ${text}`, hidden: true });
    this.meters.push(meter);
    const label = onclick ? h("button", { type: "button", class: "plain", title: "Change", onclick }, text) : h("span", {}, text);
    const remove = h("button", { type: "button", class: "quiet tiny", "data-testid": `${kind === "text" ? "query" : kind}-clear`, "aria-label": `Remove ${text}`, onclick: onremove }, icon("cross"));
    return h("li", { class: "chip", "data-kind": kind }, label, meter, remove);
  }

  /** Replace the text queries by the typed one, or add it to them. */
  async _look(also) {
    const text = this.input.value.trim();
    if (!text && also) return;
    const others = also ? this.status.texts.filter((other) => other !== text) : [];
    if (!(await attempt(() => api.query(this.id, { texts: text ? [...others, text] : [] })))) return;
    if (text) history.add(text);
    this.input.value = "";
    say(text ? `Query: ${text}` : "Text queries removed");
  }

  _edit(text) {
    this.input.value = text;
    this.input.focus();
  }

  _without(place) {
    const texts = this.status.texts.filter((_, index) => index !== place);
    return attempt(() => api.query(this.id, { texts }));
  }

  async _example(input) {
    const file = input.files[0];
    input.value = "";
    if (!file) return;
    if (file.size > EXAMPLE_BYTES) {
      toast(`${file.name} has ${Math.round(file.size / 1e6)} MB; the limit is 10 MB`, "error");
      return;
    }
    if (await attempt(() => api.example(this.id, file))) say("Searching by the example picture");
  }

  _openHistory() {
    const menu = this.form.querySelector(".menu");
    const pick = (text) => () => {
      menu.hidePopover();
      this._edit(text);
    };
    const entries = history.entries.slice(-12).reverse().map((text) => h("button", { type: "button", class: "plain", onclick: pick(text) }, text));
    menu.replaceChildren(...(entries.length ? entries : [h("p", {}, "No earlier queries")]));
    menu.showPopover();
    const box = this.form.getBoundingClientRect();
    menu.style.left = `${box.left}px`;
    menu.style.width = `${box.width}px`;
    const below = window.innerHeight - box.bottom;
    menu.style.top = below > menu.offsetHeight + 8 ? `${box.bottom + 4}px` : `${Math.max(4, box.top - menu.offsetHeight - 4)}px`;
    menu.querySelector("button")?.focus();
  }
}
