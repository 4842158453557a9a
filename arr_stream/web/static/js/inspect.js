// Why a cell was chosen, shown where the pointer is; and the pointer as gaze.

import { h } from "./dom.js";

const COLOURS = {
  information: "#6ea8ff",
  perspective: "#ffba3b",
  participation: "#ff7a9c",
  context: "#a9b4c2",
  coverage: "#7fd49b",
};
const ABOUT = {
  information: "edges and detail",
  perspective: "what stands out or moves",
  participation: "what was asked for",
  context: "background, coarsely",
  coverage: "a share for every region",
};
const GAZE_EVERY_MS = 33;
const SIDES = ["one cell", "2×2 cells", "4×4 cells"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** What the colours of the outlines mean. */
function legend() {
  const entries = Object.entries(COLOURS).map(([scorer, colour]) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = colour;
    return h("li", { title: ABOUT[scorer] }, swatch, scorer);
  });
  return h("ul", { class: "legend", "aria-label": "Colours of the ways of knowing" }, entries);
}

/** Lines that tell of a cell, from its entries in `cells` and `reasons`. */
function tellCell(cell, reason, labels) {
  const [scorer, query, origin, novelty, level] = reason;
  const lines = [`score ${cell[4].toFixed(2)} · ${scorer}`];
  if (query !== null) lines.push(`for “${labels[query] ?? `query ${query + 1}`}”`);
  lines.push(origin === "carried" ? "carried along the motion" : "computed on this frame");
  lines.push(novelty === "fresh" ? "new to the model" : "the model has seen it");
  if (level > 0) lines.push(`coarse: ${SIDES[level] ?? `level ${level}`} for one token`);
  return lines;
}

export class Inspector {
  constructor(stage, { labels }) {
    this.stage = stage;
    this.labels = labels;
    this.on = false;
    this.cells = [];
    this.reasons = [];
    this.place = null;
    this.legend = legend();
    this.pane = stage.panes[0].figure;
    this.paint = (context, scale, density) => this._paint(context, scale, density);
    stage.element.addEventListener("pointermove", (event) => this._moved(event));
    stage.element.addEventListener("pointerleave", () => this._look(null));
    stage.element.addEventListener("keydown", (event) => this._key(event));
  }

  toggle(on = !this.on) {
    this.on = on;
    this.stage.element.classList.toggle("inspecting", on);
    if (on) {
      this.stage.addPainter(this.paint);
      this.stage.element.append(this.legend);
    } else {
      this.legend.remove();
      this.cells = this.reasons = [];
      this.stage.removePainter(this.paint);
      this._look(null);
    }
  }

  /** The cells of the frame that is now on the screen. */
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
    this._look([Math.min(width - 1, Math.max(0, x + arrow[0] * step)), Math.min(height - 1, Math.max(0, y + arrow[1] * step))]);
  }

  _look(place) {
    this.place = place;
    if (place) this._tell();
    else this.stage.tip(null);
    if (this.on) this.stage.repaint();
  }

  /** Index of the cell under the place, the finest where several lie there; -1 for none. */
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

  _paint(context, scale, density) {
    context.lineWidth = density;
    this.cells.forEach(([x0, y0, x1, y1, score], index) => {
      context.globalAlpha = 0.35 + 0.5 * Math.min(1, Math.max(0, score));
      context.strokeStyle = COLOURS[this.reasons[index]?.[0]] ?? COLOURS.context;
      context.strokeRect(x0 * scale[0] + density, y0 * scale[1] + density, (x1 - x0) * scale[0] - 2 * density, (y1 - y0) * scale[1] - 2 * density);
    });
    context.globalAlpha = 1;
    const chosen = this.cells[this._under()];
    const [x, y] = this.place ?? [];
    if (chosen) {
      context.lineWidth = 3 * density;
      context.strokeStyle = "#fff";
      context.strokeRect(chosen[0] * scale[0], chosen[1] * scale[1], (chosen[2] - chosen[0]) * scale[0], (chosen[3] - chosen[1]) * scale[1]);
    } else if (this.place) {
      context.fillStyle = "#fff";
      context.fillRect(x * scale[0] - 2 * density, y * scale[1] - 2 * density, 4 * density, 4 * density);
    }
  }
}

/** While it is on, the pointer on the picture is where someone looks. `send([x, y])` gets shares of the frame. */
export class GazeTool {
  constructor(stage, send) {
    this.on = false;
    this.last_ms = 0;
    stage.element.addEventListener("pointermove", (event) => {
      if (!this.on || event.timeStamp - this.last_ms < GAZE_EVERY_MS) return;
      const place = stage.place(event);
      if (!place) return;
      this.last_ms = event.timeStamp;
      send([place[0] / stage.size_wh[0], place[1] / stage.size_wh[1]].map((share) => Math.round(share * 1e4) / 1e4));
    });
  }

  toggle(on = !this.on) {
    this.on = on;
  }
}
