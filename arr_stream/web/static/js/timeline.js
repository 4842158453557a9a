// The last seconds of a stream: age and latency, tokens and confidence, with keyframes as ticks.

import { h } from "./dom.js";

const KEPT = 2700; // frames: a minute and a half at 30 a second
const PX_A_SECOND = 16;
const LABEL_PX = 74;
const GAP_SECONDS = 1; // a longer pause is not bridged by a line
const TICK_REACH_PX = 5;

/** Entries of a point, as the server sends them. */
const [INDEX, PTS, LATENCY, TOKENS, CONFIDENCE, REASON, QUALITY, AGE] = [0, 1, 2, 3, 4, 5, 6, 7];

const LANES = [
  { name: "ms", part: 0.44, lines: [[AGE, "--line-age"], [LATENCY, "--line-latency"]], least: 20 },
  { name: "tokens", part: 0.28, lines: [[TOKENS, "--line-tokens"]], least: 10 },
  { name: "confidence", part: 0.28, lines: [[CONFIDENCE, "--line-confidence"]], least: 1, most: 1 },
];

function round(value) {
  return value >= 100 ? Math.ceil(value / 50) * 50 : Math.ceil(value / 10) * 10;
}

/** What all but one in fifty stay below: a single late frame must not flatten all others. */
function nearlyHighest(shown, lines) {
  const values = shown.flatMap((point) => lines.map(([entry]) => point.values[entry] ?? 0)).sort((a, b) => a - b);
  return values[Math.floor(values.length * 0.98)] ?? 0;
}

export class Timeline {
  constructor(holder) {
    this.canvas = holder.querySelector("canvas");
    this.tip = holder.querySelector(".tip");
    this.context = this.canvas.getContext("2d");
    this.points = [];
    this.shift_seconds = 0;
    this.pointer_px = null;
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this._hover(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this._hover(null));
    this.canvas.addEventListener("blur", () => this._hover(null));
    this.canvas.addEventListener("keydown", (event) => this._key(event));
  }

  /** Points of the newest frames; a source that begins anew goes on where the old one ended. */
  add(points) {
    for (const point of points) {
      const last = this.points.at(-1);
      const at = point[PTS] + this.shift_seconds;
      if (last && at <= last.at) this.shift_seconds = last.at + 1 / 30 - point[PTS];
      this.points.push({ at: point[PTS] + this.shift_seconds, values: point });
    }
    if (this.points.length > KEPT) this.points.splice(0, this.points.length - KEPT);
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width || !height) return;
    const density = Math.min(2, window.devicePixelRatio || 1);
    const size = [Math.round(width * density), Math.round(height * density)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) [this.canvas.width, this.canvas.height] = size;
    const { context } = this;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    this.colours = getComputedStyle(this.canvas);
    this.width = width;
    this.height = height;
    const shown = this._shown();
    this._ticks(shown);
    let top = 0;
    for (const lane of LANES) {
      this._lane(lane, shown, top, lane.part * height);
      top += lane.part * height;
    }
    if (this.pointer_px !== null) this._cross(shown);
  }

  _colour(name) {
    return this.colours.getPropertyValue(name);
  }

  _x(at) {
    return this.width - (this.points.at(-1).at - at) * PX_A_SECOND - 1;
  }

  _shown() {
    const newest = this.points.at(-1)?.at ?? 0;
    const first = newest - (this.width - LABEL_PX) / PX_A_SECOND;
    return this.points.filter(({ at }) => at >= first);
  }

  _ticks(shown) {
    const { context } = this;
    for (const { at, values } of shown) {
      if (!values[REASON]) continue;
      const plain = values[REASON] === "interval";
      context.fillStyle = this._colour(plain ? "--tick" : "--tick-loud");
      context.fillRect(Math.round(this._x(at)), 0, plain ? 1 : 2, this.height);
    }
  }

  _lane({ name, lines, least, most }, shown, top, height) {
    const { context } = this;
    const high = most ?? round(Math.max(least, nearlyHighest(shown, lines)));
    const inner = height - 5;
    context.fillStyle = this._colour("--rule");
    context.fillRect(LABEL_PX, Math.round(top + height) - 1, this.width, 1);
    lines.forEach(([entry, colour]) => {
      context.strokeStyle = this._colour(colour);
      context.lineWidth = 1.4;
      context.beginPath();
      let before = null;
      for (const { at, values: point } of shown) {
        const value = point[entry];
        if (value === null || value === undefined) {
          before = null;
          continue;
        }
        const [x, y] = [this._x(at), top + 3 + inner * (1 - Math.min(1, value / high))];
        if (before === null || at - before > GAP_SECONDS) context.moveTo(x, y);
        else context.lineTo(x, y);
        before = at;
      }
      context.stroke();
    });
    this._label(name, lines, high, top, height);
  }

  _label(name, lines, high, top, height) {
    const { context } = this;
    context.font = `11px ${this.colours.fontFamily}`;
    context.textBaseline = "middle";
    const middle = top + height / 2;
    if (name !== "ms") {
      context.fillStyle = this._colour(lines[0][1]);
      context.fillText(name, 0, middle);
      return;
    }
    context.fillStyle = this._colour("--line-age");
    context.fillText("age", 0, middle - 8);
    context.fillStyle = this._colour("--line-latency");
    context.fillText("latency", 0, middle + 7);
    context.fillStyle = this._colour("--faint");
    context.textAlign = "right";
    context.fillText(`${high} ms`, LABEL_PX - 3, top + 8);
    context.textAlign = "left";
  }

  _nearest(shown) {
    let best = null;
    let least = Infinity;
    for (const point of shown) {
      const px = Math.abs(this._x(point.at) - this.pointer_px);
      // A keyframe nearby is what the pointer is after.
      const distance = point.values[REASON] && px < TICK_REACH_PX ? px - TICK_REACH_PX : px;
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  _cross(shown) {
    const point = this._nearest(shown);
    this.tip.hidden = !point;
    if (!point) return;
    const x = this._x(point.at);
    this.context.fillStyle = this._colour("--text");
    this.context.fillRect(Math.round(x), 0, 1, this.height);
    const { values } = point;
    const told = (value, digits, unit) => (value === null || value === undefined ? "–" : value.toFixed(digits) + unit);
    const lines = [
      `frame ${values[INDEX]} · ${values[PTS].toFixed(1)} s`,
      `age ${told(values[AGE], 0, " ms")} · latency ${told(values[LATENCY], 1, " ms")}`,
      `${values[TOKENS]} tokens · confidence ${told(values[CONFIDENCE], 2, "")}`,
    ];
    if (values[REASON]) lines.push(`keyframe: ${values[REASON]}`);
    if (values[QUALITY]) lines.push(`quality lowered ${values[QUALITY]}`);
    this.tip.replaceChildren(...lines.map((line, place) => h(place ? "span" : "strong", {}, line)));
    this.tip.style.left = `${Math.min(Math.max(0, x - this.tip.offsetWidth / 2), this.width - this.tip.offsetWidth)}px`;
  }

  _hover(x) {
    this.pointer_px = x;
    if (x === null) this.tip.hidden = true;
    this.draw();
  }

  /** Left and right walk from keyframe to keyframe. */
  _key(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction || !this.points.length) return;
    event.preventDefault();
    event.stopPropagation();
    const places = this._shown().filter(({ values }) => values[REASON]).map(({ at }) => this._x(at));
    const here = this.pointer_px ?? this.width;
    const next = direction < 0 ? places.findLast((x) => x < here - 1) : places.find((x) => x > here + 1);
    if (next !== undefined) this._hover(next);
  }

  close() {
    this.resized.disconnect();
    this.points = [];
  }
}
