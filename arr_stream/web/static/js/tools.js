// Tools for the pointer and the arrow keys on the picture: mark a region, inspect a cell, send the gaze point.

import { ARROWS, clamp, h } from "./dom.js";

const SLACK_PX = 6; // screen pixels; less is a click
const LEAST_PX = 8; // source pixels
const STEP_SHARE = 0.025;
const GAZE_EVERY_MS = 33;

/** Reasons for choosing a cell, with the colours of their outlines. */
const SCORERS = {
  information: ["#6ea8ff", "edges and detail"],
  perspective: ["#ffba3b", "salient or moving"],
  participation: ["#ff7a9c", "relevant to the query"],
  context: ["#a9b4c2", "coarse background"],
  coverage: ["#7fd49b", "minimum share of each region"],
};
const SIDES = ["one cell", "2×2 cells", "4×4 cells"];

function boxOf(a, b) {
  return [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1])];
}

/** Draw one box: a light line on a dark one, visible on any picture. */
function outline(context, at, density, [x, y, w, h], dash) {
  const box = at(x, y, x + w, y + h);
  context.lineWidth = 4 * density;
  context.strokeStyle = "rgb(0 0 0 / 55%)";
  context.strokeRect(...box);
  context.lineWidth = 2 * density;
  context.strokeStyle = "#fff";
  context.setLineDash(dash.map((part) => part * density));
  context.strokeRect(...box);
  context.setLineDash([]);
}

export class RegionTool {
  /** `onmark([x, y, w, h])` in whole source pixels; `onmode(on)` when the tool is switched on or off. */
  constructor(stage, { onmark, onmode }) {
    Object.assign(this, { stage, onmark, onmode });
    this.on = false;
    this.drag = this.box = this.marked = null;
    this.paintBox = (context, at, density) => outline(context, at, density, this.box, []);
    this.paintMarked = (context, at, density) => outline(context, at, density, this._inPixels(this.marked), [6, 5]);
    const { element } = stage;
    element.addEventListener("pointerdown", (event) => this._down(event));
    element.addEventListener("pointermove", (event) => this._move(event));
    element.addEventListener("pointerup", () => this._up());
    element.addEventListener("pointercancel", () => this._end());
    element.addEventListener("keydown", (event) => this._key(event));
  }

  /** Show the present place of the queried region, `[x0, y0, x1, y1]` as shares of the frame, or null. */
  follow(box) {
    if (String(box) === String(this.marked)) return;
    this.marked = box;
    this.stage.paintBy(this.paintMarked, Boolean(box));
  }

  _inPixels([x0, y0, x1, y1]) {
    const [width, height] = this.stage.size_wh;
    return [x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height];
  }

  toggle(on = !this.on) {
    if (on === this.on) return;
    this.on = on;
    this.stage.element.classList.toggle("marking", on);
    if (on) {
      const [width, height] = this.stage.size_wh;
      this._show([width * 0.35, height * 0.35, width * 0.3, height * 0.3]);
      this.stage.element.focus({ preventScroll: true });
    } else {
      this._end();
    }
    this.onmode(on);
  }

  cancel() {
    this._end();
    this.toggle(false);
  }

  _down(event) {
    // A dragging finger scrolls the page unless the tool is on.
    if (event.button !== 0 || !event.isPrimary || (event.pointerType === "touch" && !this.on)) return;
    const pane = event.target.closest(".pane");
    const start = pane && this.stage.place(event);
    if (start) this.drag = { start, pane, at: [event.clientX, event.clientY], moved: false, pointer: event.pointerId };
  }

  _move(event) {
    const { drag } = this;
    if (!drag) return;
    if (!drag.moved) {
      if (Math.hypot(event.clientX - drag.at[0], event.clientY - drag.at[1]) < SLACK_PX) return;
      drag.moved = true;
      this.stage.element.setPointerCapture(drag.pointer);
      this.stage.element.focus({ preventScroll: true });
    }
    const end = this.stage.place(event, { pane: drag.pane, inside: false });
    if (end) this._show(boxOf(drag.start, end));
  }

  _up() {
    if (this.drag?.moved) this._finish();
    else this.drag = null;
  }

  _key(event) {
    const arrow = this.on && this.box && ARROWS[event.key];
    if (event.key === "Escape" && (this.on || this.drag?.moved)) {
      event.stopPropagation();
      this.cancel();
    } else if (this.on && this.box && event.key === "Enter") {
      this._finish();
    } else if (arrow) {
      event.stopPropagation();
      this._nudge(arrow, event.shiftKey);
    } else {
      return;
    }
    event.preventDefault();
  }

  _nudge([right, down], resize) {
    const [width, height] = this.stage.size_wh;
    const [dx, dy] = [right * width * STEP_SHARE, down * height * STEP_SHARE];
    const [x, y, w, h] = this.box;
    if (resize) this._show([x, y, clamp(w + dx, LEAST_PX, width - x), clamp(h + dy, LEAST_PX, height - y)]);
    else this._show([clamp(x + dx, 0, width - w), clamp(y + dy, 0, height - h), w, h]);
  }

  _finish() {
    const { box } = this;
    this.cancel();
    if (!box || box[2] < LEAST_PX || box[3] < LEAST_PX) return;
    const [x, y] = [Math.round(box[0]), Math.round(box[1])];
    const [width, height] = this.stage.size_wh;
    this.onmark([x, y, Math.min(Math.round(box[2]), width - x), Math.min(Math.round(box[3]), height - y)]);
  }

  _show(box) {
    this.box = box;
    this.stage.paintBy(this.paintBox, true);
  }

  _end() {
    this.drag = this.box = null;
    this.stage.paintBy(this.paintBox, false);
  }
}

function legend() {
  const entries = Object.entries(SCORERS).map(([scorer, [colour, about]]) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = colour;
    return h("li", { title: about }, swatch, scorer);
  });
  return h("ul", { class: "legend", "aria-label": "Colours of the reasons" }, entries);
}

/** Return lines that describe a cell, from its entries in `cells` and `reasons`. */
function tellCell(cell, [scorer, query, origin, novelty, level], labels) {
  const lines = [`score ${cell[4].toFixed(2)} · ${scorer}`];
  if (query !== null) lines.push(`for “${labels[query] ?? `query ${query + 1}`}”`);
  lines.push(origin === "carried" ? "propagated from an earlier frame" : "computed on this frame");
  lines.push(novelty === "fresh" ? "new to the model" : "the model has it already");
  if (level < 0) lines.push("finer: four tokens at the source's resolution");
  if (level > 0) lines.push(`coarse: ${SIDES[level] ?? `level ${level}`} for one token`);
  return lines;
}

export class Inspector {
  /** `labels()` returns the names of the queries. */
  constructor(stage, labels) {
    Object.assign(this, { stage, labels });
    this.on = false;
    this.cells = this.reasons = [];
    this.place = null;
    this.legend = legend();
    this.pane = stage.panes[0].figure;
    this.paint = (context, at, density) => this._paint(context, at, density);
    stage.element.addEventListener("pointermove", (event) => this._moved(event));
    stage.element.addEventListener("pointerleave", () => this._look(null));
    stage.element.addEventListener("keydown", (event) => this._key(event));
  }

  toggle() {
    this.on = !this.on;
    this.stage.element.classList.toggle("inspecting", this.on);
    this.stage.paintBy(this.paint, this.on);
    if (this.on) {
      this.stage.element.append(this.legend);
    } else {
      this.legend.remove();
      this.cells = this.reasons = [];
      this._look(null);
    }
  }

  /** Set the cells of the frame on the screen. */
  frame(header) {
    if (!this.on || !header.cells) return;
    this.cells = header.cells;
    this.reasons = header.reasons ?? [];
    this.stage.repaint();
    if (this.place) this._tell();
  }

  _moved(event) {
    if (!this.on) return;
    this.pane = event.target.closest(".pane") ?? this.pane;
    this._look(this.stage.place(event));
  }

  _key(event) {
    const arrow = ARROWS[event.key];
    if (!this.on || !arrow || event.defaultPrevented) return;
    event.preventDefault();
    const [width, height] = this.stage.size_wh;
    const [x, y] = this.place ?? [width / 2, height / 2];
    const step = Math.max(width, height) / 40;
    this._look([clamp(x + arrow[0] * step, 0, width - 1), clamp(y + arrow[1] * step, 0, height - 1)]);
  }

  _look(place) {
    this.place = place;
    if (place) this._tell();
    else this.stage.tip(null);
    if (this.on) this.stage.repaint();
  }

  /** Return the index of the cell at a place, the finest of several; -1 for none. */
  _under() {
    if (!this.place) return -1;
    const [x, y] = this.place;
    let best = -1;
    this.cells.forEach(([x0, y0, x1, y1], index) => {
      if (x < x0 || x >= x1 || y < y0 || y >= y1) return;
      if (best < 0 || x1 - x0 < this.cells[best][2] - this.cells[best][0]) best = index;
    });
    return best;
  }

  _tell() {
    const index = this._under();
    const lines = index < 0 ? ["not chosen"] : tellCell(this.cells[index], this.reasons[index] ?? ["?", null, "", "", 0], this.labels());
    this.stage.tip(lines, this.place, this.pane);
  }

  _paint(context, at, density) {
    context.lineWidth = density;
    this.cells.forEach((cell, index) => {
      const [x, y, w, h] = at(...cell);
      context.globalAlpha = 0.35 + 0.5 * clamp(cell[4], 0, 1);
      [context.strokeStyle] = SCORERS[this.reasons[index]?.[0]] ?? SCORERS.context;
      context.strokeRect(x + density, y + density, w - 2 * density, h - 2 * density);
    });
    context.globalAlpha = 1;
    const chosen = this.cells[this._under()];
    if (chosen) {
      context.lineWidth = 3 * density;
      context.strokeStyle = "#fff";
      context.strokeRect(...at(...chosen));
    } else if (this.place) {
      const [x, y] = at(...this.place, ...this.place);
      context.fillStyle = "#fff";
      context.fillRect(x - 2 * density, y - 2 * density, 4 * density, 4 * density);
    }
  }
}

/** While it is on, the pointer on the picture is the gaze point. `send([x, y])` gets shares of the frame. */
export class GazeTool {
  constructor(stage, send) {
    this.on = false;
    let last_ms = 0;
    stage.element.addEventListener("pointermove", (event) => {
      if (!this.on || event.timeStamp - last_ms < GAZE_EVERY_MS) return;
      const place = stage.place(event);
      if (!place) return;
      last_ms = event.timeStamp;
      send(place.map((at, axis) => Math.round((at / stage.size_wh[axis]) * 1e4) / 1e4));
    });
  }

  toggle() {
    this.on = !this.on;
  }
}
