// The cards of all streams, in the order in which the streams were added.

import { Card } from "./card.js";
import { fromTemplate } from "./dom.js";
import { on, store } from "./store.js";

export class Streams {
  constructor(holder) {
    this.holder = holder;
    this.cards = new Map();
    this.empty = null;
    on("streams", (list) => this._list(list));
    on("status", (status) => this.cards.get(status.id)?.update(status, this._number(status.id)));
    on("chosen", () => this._mark());
    on("link", () => this.cards.forEach((card) => card.linkChanged()));
    on("summary", ({ stream, points }) => this.cards.get(stream)?.timeline.add(points));
    on("cells", ({ stream, cells }) => this.cards.get(stream)?.markCells(cells));
    window.addEventListener("arr-theme", () => this.cards.forEach((card) => card.timeline.draw()));
  }

  get chosen() {
    return this.cards.get(store.chosen) ?? null;
  }

  _number(id) {
    return [...store.streams.keys()].indexOf(id) + 1;
  }

  _list(list) {
    for (const [id, card] of this.cards) {
      if (store.streams.has(id)) continue;
      this.cards.delete(id);
      card.close();
    }
    for (const { id } of list) {
      if (this.cards.has(id)) continue;
      const card = new Card(id);
      this.cards.set(id, card);
      this.holder.append(card.element);
    }
    this.holder.dataset.count = String(this.cards.size);
    this._sayEmpty();
    this._mark();
  }

  _sayEmpty() {
    if (this.cards.size) {
      this.empty?.remove();
      this.empty = null;
    } else if (!this.empty) {
      this.empty = fromTemplate("empty-template");
      this.empty.querySelector("[data-action=start-browser-camera]").hidden = !store.info.sources.browser;
      this.holder.append(this.empty);
    }
  }

  _mark() {
    for (const [id, { element }] of this.cards) {
      element.classList.toggle("chosen", id === store.chosen);
      element.querySelector(".choose").setAttribute("aria-pressed", String(id === store.chosen));
    }
  }
}
