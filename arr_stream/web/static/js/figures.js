// The strip of live figures below a picture.

import { h, setText } from "./dom.js";

const EVERY_MS = 250; // numbers that change faster cannot be read

const number = (value, digits = 0) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

/** Name, unit, what it is, and how it is told. */
const FIGURES = [
  ["frames/s", "", "frames processed a second", (f) => number(f.fps, 1)],
  ["age", "ms", "from capture to this screen, the latest frames", (f) => number(f.age_ms)],
  ["latency", "ms", "spent by the server on a frame", (f) => number(f.latency_ms, 1)],
  ["tokens", "", "cells chosen for the model", (f) => number(f.tokens)],
  ["confidence", "", "trust in what is carried from the keyframe", (f) => number(f.confidence, 2)],
  ["keyframe", "", "frames since the last one, and why it was made", (f) => number(f.keyframe_age)],
  ["quality", "", "lowered under load, restored after", (f) => (f.quality > 0 ? `lowered ${f.quality}` : "full")],
  ["dropped", "", "frames passed over so that the newest is shown", (f) => number(f.dropped)],
];

export class Figures {
  constructor(list) {
    this.list = list;
    this.cells = FIGURES.map(([name, unit, about]) => {
      const value = h("dd", {}, "–");
      if (name === "keyframe") this.why = h("dd", { class: "why" });
      list.append(h("div", { class: "figure", "data-figure": name, title: about }, h("dt", {}, unit ? `${name} ${unit}` : name), value, name === "keyframe" ? this.why : null));
      return value;
    });
    this.reason = null;
    this.age_ms = null;
    this.newest = {};
    this.timer = 0;
  }

  /** A frame that was shown. */
  frame(header, age_ms) {
    if (header.refresh_reason) this.reason = header.refresh_reason;
    // Smoothed over about ten frames: one late frame is for the timeline to show.
    this.age_ms = this.age_ms === null ? age_ms : this.age_ms + (age_ms - this.age_ms) / 10;
    this.newest = { ...header, reason: this.reason, age_ms: this.age_ms };
    this._later();
  }

  /** A status, for what is shown while no frames come. */
  status(status, live) {
    if (live && this.newest.seq !== undefined) return;
    const { fps, latency_ms, tokens, confidence, quality, dropped } = status;
    this.newest = { ...this.newest, fps: live ? fps : 0, latency_ms, tokens, confidence, quality, dropped, seq: undefined };
    this._later();
  }

  _later() {
    if (!this.timer) this.timer = setTimeout(() => this._write(), EVERY_MS);
  }

  _write() {
    this.timer = 0;
    setText(this.why, this.newest.reason ?? "");
    FIGURES.forEach(([name, , , told], place) => {
      const cell = this.cells[place];
      setText(cell, told(this.newest));
      if (name === "quality") cell.parentElement.classList.toggle("warm", this.newest.quality > 0);
      if (name === "confidence") cell.parentElement.classList.toggle("warm", Number.isFinite(this.newest.confidence) && this.newest.confidence < 0.4);
    });
  }

  close() {
    clearTimeout(this.timer);
  }
}
