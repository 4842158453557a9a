// Marking a region: by dragging on the picture, or with the arrow keys.

const SLACK_PX = 6; // screen pixels; less is a click
const LEAST_PX = 8; // source pixels
const STEP_SHARE = 0.025;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function boxOf(a, b) {
  const [x, y] = [Math.min(a[0], b[0]), Math.min(a[1], b[1])];
  return [x, y, Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1])];
}

/** A painter of one box: light line on a dark one, readable on anything. */
function outline(context, scale, density, [x, y, w, h], dash) {
  const box = [x * scale[0], y * scale[1], w * scale[0], h * scale[1]];
  context.setLineDash([]);
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
  /** `onmark([x, y, w, h])` in whole source pixels; `onmode(on)` when the tool is taken up or put down. */
  constructor(stage, { onmark, onmode }) {
    this.stage = stage;
    this.onmark = onmark;
    this.onmode = onmode;
    this.on = false;
    this.drag = null;
    this.box = null;
    this.marked = null;
    this.paintBox = (context, scale, density) => this.box && outline(context, scale, density, this.box, []);
    this.paintMarked = (context, scale, density) => outline(context, scale, density, this.marked, [6, 5]);
    const { element } = stage;
    element.addEventListener("pointerdown", (event) => this._down(event));
    element.addEventListener("pointermove", (event) => this._move(event));
    element.addEventListener("pointerup", (event) => this._up(event));
    element.addEventListener("pointercancel", () => this._end());
    element.addEventListener("keydown", (event) => this._key(event));
  }

  /** The region that the server looks for, or null. */
  showMarked(xywh) {
    const before = this.marked;
    this.marked = xywh;
    if (xywh && !before) this.stage.addPainter(this.paintMarked);
    else if (!xywh && before) this.stage.removePainter(this.paintMarked);
    else if (xywh && String(xywh) !== String(before)) this.stage.repaint();
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

  /** True while something can be cancelled. */
  get busy() {
    return this.on || Boolean(this.drag?.moved);
  }

  cancel() {
    this._end();
    this.toggle(false);
  }

  _down(event) {
    // A finger that drags scrolls the page, unless the tool was taken up.
    if (event.button !== 0 || !event.isPrimary || (event.pointerType === "touch" && !this.on)) return;
    const pane = event.target.closest(".pane");
    const start = pane && this.stage.place(event);
    if (start) this.drag = { start, pane, at: [event.clientX, event.clientY], moved: false, pointer: event.pointerId };
  }

  _move(event) {
    const { drag } = this;
    if (!drag) return;
    const far = Math.hypot(event.clientX - drag.at[0], event.clientY - drag.at[1]);
    if (!drag.moved && far < SLACK_PX) return;
    if (!drag.moved) {
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
    if (event.key === "Escape" && this.busy) {
      event.preventDefault();
      event.stopPropagation();
      this.cancel();
    } else if (this.on && this.box && event.key === "Enter") {
      event.preventDefault();
      this._finish();
    } else if (this.on && this.box && ARROWS[event.key]) {
      event.preventDefault();
      event.stopPropagation();
      this._nudge(ARROWS[event.key], event.shiftKey);
    }
  }

  _nudge([right, down], resize) {
    const [width, height] = this.stage.size_wh;
    const [dx, dy] = [right * width * STEP_SHARE, down * height * STEP_SHARE];
    const [x, y, w, h] = this.box;
    if (resize) this._show([x, y, clamp(w + dx, LEAST_PX, width - x), clamp(h + dy, LEAST_PX, height - y)]);
    else this._show([clamp(x + dx, 0, width - w), clamp(y + dy, 0, height - h), w, h]);
  }

  _finish() {
    const box = this.box;
    this._end();
    this.toggle(false);
    if (!box || box[2] < LEAST_PX || box[3] < LEAST_PX) return;
    const [x, y] = [Math.round(box[0]), Math.round(box[1])];
    const [width, height] = this.stage.size_wh;
    this.onmark([x, y, Math.min(Math.round(box[2]), width - x), Math.min(Math.round(box[3]), height - y)]);
  }

  _show(box) {
    this.box = box;
    this.stage.addPainter(this.paintBox);
  }

  _end() {
    this.drag = null;
    this.box = null;
    this.stage.removePainter(this.paintBox);
  }
}
