// Below a picture: the strip of live figures, and the last seconds as lines, with keyframes as ticks.

import { clamp, h, setText, sharpen, tipLines } from "./dom.js";

const EVERY_MS = 250; // numbers that change faster cannot be read

const number = (value, digits = 0, unit = "") => (Number.isFinite(value) ? value.toFixed(digits) + unit : "–");

/** Describe the quality at a step of the server; the step is null for a stream that does not run. */
export function quality(step, { long = false } = {}) {
  if (!Number.isFinite(step)) return "–";
  if (step === 0) return "full";
  if (!long) return "lowered to keep up";
  return `lowered to keep up: keyframes are rarer${step > 2 ? ", and motion is searched on smaller pictures" : ""}`;
}

/** Key, title, description and format of each figure. */
const FIGURES = [
  ["fps", "frames / s", "frames processed a second", (f) => number(f.fps, 1)],
  ["age", "delay, ms", "from capture to this screen, mean of the latest frames", (f) => number(f.age_ms)],
  ["latency", "processing, ms", "time that the server spent on a frame", (f) => number(f.latency_ms, 1)],
  ["tokens", "tokens", "visual tokens chosen for the model on this frame", (f) => number(f.tokens)],
  ["confidence", "confidence", "from 0 to 1: reliability of results propagated from the keyframe", (f) => number(f.confidence, 2)],
  ["keyframe", "since keyframe", "frames since the last keyframe, which the models analyse in full, and its reason", (f) => number(f.keyframe_age)],
  ["quality", "quality", "lowered while the server is too slow for the source", (f) => quality(f.quality)],
  ["dropped", "skipped", "frames dropped in favour of newer ones", (f) => number(f.dropped)],
];

const KEPT = 2700; // frames: a minute and a half at 30 a second
const PX_A_SECOND = 16;
const LABEL_PX = 84;
const GAP_SECONDS = 1; // a longer pause is not bridged by a line
const TICK_REACH_PX = 5;

/** Entries of a point, as the server sends them. */
const [INDEX, PTS, LATENCY, TOKENS, CONFIDENCE, REASON, QUALITY, AGE] = [0, 1, 2, 3, 4, 5, 6, 7];

const LANES = [
  { name: "ms", part: 0.44, lines: [[AGE, "--line-age"], [LATENCY, "--line-latency"]], least: 20 },
  { name: "tokens", part: 0.28, lines: [[TOKENS, "--line-tokens"]], least: 10 },
  { name: "confidence", part: 0.28, lines: [[CONFIDENCE, "--line-confidence"]], least: 1, most: 1 },
];

export class Figures {
  constructor(list) {
    this.why = h("dd", { class: "why" });
    this.cells = FIGURES.map(([name, title, about]) => {
      const value = h("dd", {}, "–");
      list.append(h("div", { class: "figure", "data-figure": name, title: about }, h("dt", {}, title), value, name === "keyframe" ? this.why : null));
      return value;
    });
    this.reason = this.age_ms = null;
    this.live = true;
    this.newest = {};
    this.timer = 0;
  }

  /** A frame that was shown. */
  frame(header, age_ms) {
    if (header.refresh_reason) this.reason = header.refresh_reason;
    // Smoothed over about ten frames: one late frame is for the timeline to show.
    this.age_ms = this.age_ms === null ? age_ms : this.age_ms + (age_ms - this.age_ms) / 10;
    this.newest = { ...header, reason: this.reason, age_ms: this.age_ms };
    // The last pictures of a stream come after the word that it has ended.
    if (!this.live) Object.assign(this.newest, { fps: 0, quality: null });
    this._later();
  }

  /** Show a status while no frames arrive. */
  status(status, live) {
    this.live = live;
    if (live && this.newest.seq !== undefined) return;
    const { fps, latency_ms, tokens, confidence, dropped } = status;
    this.newest = { ...this.newest, fps: live ? fps : 0, latency_ms, tokens, confidence, quality: live ? status.quality : null, dropped, seq: undefined };
    this._later();
  }

  _later() {
    if (!this.timer) this.timer = setTimeout(() => this._write(), EVERY_MS);
  }

  _write() {
    this.timer = 0;
    setText(this.why, this.newest.reason ?? "");
    const { quality: step, confidence } = this.newest;
    const warm = { quality: step > 0, confidence: Number.isFinite(confidence) && confidence < 0.4 };
    FIGURES.forEach(([name, , , told], place) => {
      setText(this.cells[place], told(this.newest));
      this.cells[place].parentElement.classList.toggle("warm", Boolean(warm[name]));
    });
  }

  close() {
    clearTimeout(this.timer);
  }
}

function round(value) {
  return value >= 100 ? Math.ceil(value / 50) * 50 : Math.ceil(value / 10) * 10;
}

/** Return the 98th percentile, so that a single late frame does not compress all others. */
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
    for (const end of ["pointerleave", "blur"]) this.canvas.addEventListener(end, () => this._hover(null));
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
    const { canvas, context } = this;
    const [width, height] = (this.size = [canvas.clientWidth, canvas.clientHeight]);
    if (!width || !height) return;
    const density = sharpen(canvas);
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, width, height);
    this.colours = getComputedStyle(canvas);
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
    return this.size[0] - (this.points.at(-1).at - at) * PX_A_SECOND - 1;
  }

  _shown() {
    const newest = this.points.at(-1)?.at ?? 0;
    const first = newest - (this.size[0] - LABEL_PX) / PX_A_SECOND;
    return this.points.filter(({ at }) => at >= first);
  }

  _ticks(shown) {
    const { context } = this;
    for (const { at, values } of shown) {
      if (!values[REASON]) continue;
      const plain = values[REASON] === "interval";
      context.fillStyle = this._colour(plain ? "--tick" : "--tick-loud");
      context.fillRect(Math.round(this._x(at)), 0, plain ? 1 : 2, this.size[1]);
    }
  }

  _lane({ name, lines, least, most }, shown, top, height) {
    const { context } = this;
    const high = most ?? round(Math.max(least, nearlyHighest(shown, lines)));
    const inner = height - 5;
    context.fillStyle = this._colour("--rule");
    context.fillRect(LABEL_PX, Math.round(top + height) - 1, this.size[0], 1);
    for (const [entry, colour] of lines) {
      context.strokeStyle = this._colour(colour);
      context.lineWidth = 1.4;
      context.beginPath();
      let before = -Infinity;
      for (const { at, values } of shown) {
        const value = values[entry] ?? null;
        const [x, y] = [this._x(at), top + 3 + inner * (1 - Math.min(1, value / high))];
        if (value !== null) context[at - before > GAP_SECONDS ? "moveTo" : "lineTo"](x, y);
        before = value === null ? -Infinity : at;
      }
      context.stroke();
    }
    this._label(name, lines, high, top, height);
  }

  _label(name, lines, high, top, height) {
    const { context } = this;
    const middle = top + height / 2;
    const write = (text, colour, x, y, align = "left") => {
      context.fillStyle = this._colour(colour);
      context.textAlign = align;
      context.fillText(text, x, y);
    };
    context.font = `11px ${this.colours.fontFamily}`;
    context.textBaseline = "middle";
    if (name !== "ms") return write(name, lines[0][1], 0, middle);
    write("delay", "--line-age", 0, middle - 8);
    write("processing", "--line-latency", 0, middle + 7);
    return write(`${high} ms`, "--faint", LABEL_PX - 3, top + 8, "right");
  }

  _nearest(shown) {
    let best = null;
    let least = Infinity;
    for (const point of shown) {
      const px = Math.abs(this._x(point.at) - this.pointer_px);
      // Prefer a nearby keyframe.
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
    this.context.fillRect(Math.round(x), 0, 1, this.size[1]);
    const { values } = point;
    const lines = [
      `frame ${values[INDEX]} · ${values[PTS].toFixed(1)} s`,
      `delay ${number(values[AGE], 0, " ms")} · processing ${number(values[LATENCY], 1, " ms")}`,
      `${values[TOKENS]} tokens · confidence ${number(values[CONFIDENCE], 2)}`,
    ];
    if (values[REASON]) lines.push(`keyframe: ${values[REASON]}`);
    if (values[QUALITY]) lines.push(`quality ${quality(values[QUALITY])}`);
    this.tip.replaceChildren(...tipLines(lines));
    this.tip.style.left = `${clamp(x - this.tip.offsetWidth / 2, 0, this.size[0] - this.tip.offsetWidth)}px`;
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
    const here = this.pointer_px ?? this.size[0];
    const next = direction < 0 ? places.findLast((x) => x < here - 1) : places.find((x) => x > here + 1);
    if (next !== undefined) this._hover(next);
  }

  close() {
    this.resized.disconnect();
    this.points = [];
  }
}
