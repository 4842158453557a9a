// The two choosers of a card: what is shown, and what beside it.

import { h } from "./dom.js";
import { recall, remember } from "./remember.js";
import { store } from "./store.js";

const ABOUT = {
  source: "the picture as it came",
  patches: "what the model would look at",
  relevance: "how much each place matters",
  clusters: "regions that belong together",
  flow: "where things move",
  text: "where something is written",
};

function viewLabel(view) {
  return view.startsWith("channel:") ? view.slice("channel:".length) : view;
}

function options() {
  const views = store.info.views.map((view) =>
    h("option", { value: view, title: ABOUT[view] }, ABOUT[view] ? `${view} · ${ABOUT[view]}` : view),
  );
  const channels = store.info.channels.map((channel) =>
    h("option", { value: `channel:${channel.name}` }, `${channel.index} ${channel.name} · ${channel.description}`),
  );
  return [h("optgroup", { label: "Views" }, views), h("optgroup", { label: `The ${channels.length} channels` }, channels)];
}

export class ViewChooser {
  /** `onchange([view] | [view, beside])` is called at each change. */
  constructor(card, onchange) {
    this.first = card.querySelector("[data-testid=view-select]");
    this.beside = card.querySelector("[data-testid=beside-select]");
    this.onchange = onchange;
    this.first.append(...options());
    this.beside.append(h("option", { value: "" }, "nothing"), ...options());
    this._take(recall("views", ["patches"]));
    for (const select of [this.first, this.beside]) select.addEventListener("change", () => this._changed());
  }

  get views() {
    return this.beside.value ? [this.first.value, this.beside.value] : [this.first.value];
  }

  get captions() {
    return this.views.map(viewLabel);
  }

  /** The next of the named views; channels are reached through the list. */
  next() {
    const { views } = store.info;
    this.first.value = views[(views.indexOf(this.first.value) + 1) % views.length];
    this._changed();
  }

  /** A second view beside the first, or none. */
  toggleBeside() {
    const last = recall("beside", "source");
    const other = this.first.value === last ? store.info.views.find((view) => view !== last) : last;
    this.beside.value = this.beside.value ? "" : other;
    this._changed();
  }

  _take(views) {
    this.first.value = views[0];
    if (this.first.selectedIndex < 0) this.first.value = store.info.views.includes("patches") ? "patches" : store.info.views[0];
    this.beside.value = views[1] ?? "";
    if (this.beside.selectedIndex < 0) this.beside.value = "";
  }

  _changed() {
    remember("views", this.views);
    if (this.beside.value) remember("beside", this.beside.value);
    this.onchange(this.views);
  }
}
