// The stage: one or two pictures of the same frame, marks drawn over them in pixels of the upright source frame, and
// what is said over them while no new one comes.

import { h, setIcon, setText } from "./dom.js";

const AGAIN = "Try again now";

/** State: what is said, its icon, and what the button says that opens the source anew; null for none. */
const SHOWN = {
  connecting: ["Connecting", "wait", null],
  stalled: ["No pictures come", "wait", AGAIN],
  reconnecting: ["Reconnecting", "wait", AGAIN],
  paused: ["Paused", "pause", null],
  ended: ["Ended", "play", "Play again"],
  failed: ["Failed", "stop", AGAIN],
  "server-lost": ["Connection to the server lost", "wait", null],
  crowded: ["Too many viewers", "wait", null],
  origin: ["The server refuses this page's address", "stop", null],
  opening: ["Opening the picture", "wait", null],
};

class Pane {
  constructor(figure, stage) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas.video");
    this.marks = figure.querySelector("canvas.marks");
    this.caption = figure.querySelector("figcaption");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.overlay = this.marks.getContext("2d");
    this.stage = stage;
    this.marked = false;
  }

  /** Draws at once, without waiting for the next animation frame, and closes the bitmap. */
  draw(bitmap) {
    const { canvas } = this;
    if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
      canvas.width = bitmap.width;
      canvas.height = bitmap.height;
      this.figure.style.setProperty("--ratio", String(bitmap.width / bitmap.height));
    }
    this.context.drawImage(bitmap, 0, 0);
    bitmap.close();
  }

  paint(painters, size_wh) {
    if (!painters.size && !this.marked) return;
    const { marks, overlay } = this;
    const density = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.round(marks.clientWidth * density);
    const height = Math.round(marks.clientHeight * density);
    if (marks.width !== width || marks.height !== height) {
      marks.width = width;
      marks.height = height;
    } else {
      overlay.clearRect(0, 0, width, height);
    }
    const scale = [width / size_wh[0], height / size_wh[1]];
    for (const painter of painters) painter(overlay, scale, density);
    this.marked = painters.size > 0;
  }
}

export class Stage {
  constructor(element) {
    this.element = element;
    this.panes = [...element.querySelectorAll(".pane")].map((figure) => new Pane(figure, this));
    this.size_wh = [640, 360];
    this.painters = new Set();
    this.resized = new ResizeObserver(() => this.repaint());
    this.resized.observe(this.panes[0].figure);
  }

  /** Which views are shown, with the captions that say so. */
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

  addPainter(painter) {
    this.painters.add(painter);
    this.repaint();
  }

  removePainter(painter) {
    this.painters.delete(painter);
    this.repaint();
  }

  repaint() {
    for (const pane of this.panes) if (!pane.figure.hidden) pane.paint(this.painters, this.size_wh);
  }

  /** Where a pointer event is: `[x, y]` in source pixels, kept inside the frame; null off the pictures. */
  place(event, { pane = null, inside = true } = {}) {
    const figure = pane ?? event.target.closest?.(".pane");
    if (!figure) return null;
    const box = figure.querySelector("canvas.video").getBoundingClientRect();
    if (!box.width || !box.height) return null;
    const x = (event.clientX - box.left) / box.width;
    const y = (event.clientY - box.top) / box.height;
    if (inside && (x < 0 || y < 0 || x > 1 || y > 1)) return null;
    const [width, height] = this.size_wh;
    return [Math.min(1, Math.max(0, x)) * width, Math.min(1, Math.max(0, y)) * height];
  }

  /** Lines of a small box at a place in source pixels of a pane; `null` hides it. */
  tip(lines, xy = [0, 0], figure = this.panes[0].figure) {
    const box = this.element.querySelector(":scope > .tip");
    box.hidden = lines === null;
    if (lines === null) return;
    const text = lines.join("\n");
    if (box.dataset.text !== text) {
      box.dataset.text = text;
      box.replaceChildren(...lines.map((line, place) => h(place ? "span" : "strong", {}, line)));
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

  /** `state` as in the status, or one of the page's own; null: a live picture is there. */
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
