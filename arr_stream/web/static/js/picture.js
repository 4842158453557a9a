// The stage: one or two views of the same frame, marks on them in pixels of the upright source frame, the message
// while no new picture arrives, and the choice of views.

import { clamp, h, setIcon, setText, sharpen, tipLines } from "./dom.js";
import { recall, remember, store } from "./store.js";

/** By state: message, icon, and label of the button that reopens the source. */
const SHOWN = {
  connecting: ["Connecting", "wait"],
  stalled: ["No pictures arrive", "wait"],
  reconnecting: ["Reconnecting", "wait"],
  paused: ["Paused", "pause"],
  ended: ["Ended", "play", "Play again"],
  failed: ["Failed", "stop", "Try again now"],
  "server-lost": ["Connection to the server lost", "wait"],
  crowded: ["Too many viewers", "wait"],
  origin: ["The server refuses this page's address", "stop"],
  opening: ["Opening the picture", "wait"],
};

/** Descriptions of the named views. */
const ABOUT = {
  source: "the original picture",
  patches: "cells for the model",
  relevance: "score of each cell",
  clusters: "regions of similar appearance",
  flow: "optical flow",
  text: "text regions",
  history: "earlier queries and attention",
};

class Pane {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas.video");
    this.marks = figure.querySelector("canvas.marks");
    this.caption = figure.querySelector("figcaption");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.overlay = this.marks.getContext("2d");
    this.marked = false;
  }

  /** Draws at once, without waiting for the next animation frame, and closes the bitmap. */
  draw(bitmap) {
    const { canvas } = this;
    if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
      [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
      this.figure.style.setProperty("--ratio", String(bitmap.width / bitmap.height));
    }
    this.context.drawImage(bitmap, 0, 0);
    bitmap.close();
  }

  /** Painters get the context, a function from source pixels `x0, y0, x1, y1` to a box on it, and the density. */
  paint(painters, size_wh) {
    if (!painters.size && !this.marked) return;
    const { marks, overlay } = this;
    const density = sharpen(marks);
    overlay.clearRect(0, 0, marks.width, marks.height);
    const [right, down] = [marks.width / size_wh[0], marks.height / size_wh[1]];
    const at = (x0, y0, x1, y1) => [x0 * right, y0 * down, (x1 - x0) * right, (y1 - y0) * down];
    for (const painter of painters) painter(overlay, at, density);
    this.marked = painters.size > 0;
  }
}

export class Stage {
  constructor(element) {
    this.element = element;
    this.panes = [...element.querySelectorAll(".pane")].map((figure) => new Pane(figure));
    this.size_wh = [640, 360];
    this.painters = new Set();
    this.resized = new ResizeObserver(() => this.repaint());
    this.resized.observe(this.panes[0].figure);
  }

  /** Set the views and their captions. */
  arrange(captions) {
    this.panes.forEach((pane, place) => {
      pane.figure.hidden = place >= captions.length;
      setText(pane.caption, captions.length > 1 ? captions[place] ?? "" : "");
    });
    this.element.dataset.panes = String(captions.length);
    this.repaint();
  }

  draw(header, bitmaps) {
    this.size_wh = header.size_wh;
    bitmaps.forEach((bitmap, place) => {
      if (place < this.panes.length && !this.panes[place].figure.hidden) this.panes[place].draw(bitmap);
      else bitmap.close();
    });
  }

  /** Add a painter that draws over the pictures, or remove it. */
  paintBy(painter, wanted) {
    this.painters[wanted ? "add" : "delete"](painter);
    this.repaint();
  }

  repaint() {
    for (const pane of this.panes) if (!pane.figure.hidden) pane.paint(this.painters, this.size_wh);
  }

  /** Return the place of a pointer event, `[x, y]` in source pixels, clamped to the frame; null outside the pictures. */
  place(event, { pane = null, inside = true } = {}) {
    const figure = pane ?? event.target.closest?.(".pane");
    if (!figure) return null;
    const box = figure.querySelector("canvas.video").getBoundingClientRect();
    if (!box.width || !box.height) return null;
    const x = (event.clientX - box.left) / box.width;
    const y = (event.clientY - box.top) / box.height;
    if (inside && (x < 0 || y < 0 || x > 1 || y > 1)) return null;
    const [width, height] = this.size_wh;
    return [clamp(x, 0, 1) * width, clamp(y, 0, 1) * height];
  }

  /** Lines of a small box at a place in source pixels of a pane; `null` hides it. */
  tip(lines, xy = [0, 0], figure = this.panes[0].figure) {
    const box = this.element.querySelector(":scope > .tip");
    box.hidden = lines === null;
    if (lines === null) return;
    const text = lines.join("\n");
    if (box.dataset.text !== text) {
      box.dataset.text = text;
      box.replaceChildren(...tipLines(lines));
    }
    const stage = this.element.getBoundingClientRect();
    const canvas = figure.querySelector("canvas.video").getBoundingClientRect();
    const x = canvas.left - stage.left + (xy[0] / this.size_wh[0]) * canvas.width;
    const y = canvas.top - stage.top + (xy[1] / this.size_wh[1]) * canvas.height;
    const left = x + 16 + box.offsetWidth > stage.width ? Math.max(4, x - 12 - box.offsetWidth) : x + 16;
    box.style.left = `${left}px`;
    box.style.top = `${Math.max(4, Math.min(y + 12, stage.height - box.offsetHeight - 4))}px`;
  }

  close() {
    this.resized.disconnect();
    this.painters.clear();
    // Without this a removed canvas may keep its memory until the next collection.
    for (const pane of this.panes) pane.canvas.width = pane.canvas.height = pane.marks.width = pane.marks.height = 0;
  }
}

export class StateOverlay {
  constructor(stage) {
    this.stage = stage;
    this.box = stage.querySelector("[data-testid=state-overlay]");
    this.retry = this.box.querySelector("[data-action=retry]");
  }

  /** `state` is one of the status or of the page; null if a live picture is shown. */
  show(state, why = null) {
    const shown = SHOWN[state];
    this.box.hidden = !shown;
    this.stage.classList.toggle("dimmed", Boolean(shown));
    if (!shown) return;
    const [what, iconName, again] = shown;
    this.box.dataset.state = state;
    setText(this.box.querySelector(".what"), what);
    setText(this.box.querySelector(".why"), why ?? "");
    setIcon(this.box, iconName);
    this.box.querySelector(".icon").classList.toggle("turning", iconName === "wait");
    this.retry.hidden = !again;
    if (again) setText(this.retry, again);
  }
}

function options() {
  const views = store.info.views.map((view) => h("option", { value: view, title: ABOUT[view] }, ABOUT[view] ? `${view} · ${ABOUT[view]}` : view));
  const channels = store.info.channels.map(({ index, name, description }) => h("option", { value: `channel:${name}` }, `${index} ${name} · ${description}`));
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
    return this.views.map((view) => view.replace(/^channel:/, ""));
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
