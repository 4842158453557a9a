// What is said over the picture while no new one comes.

import { setIcon, setText } from "./dom.js";

/** State: what is said, its icon, and whether the source may be opened anew by hand. */
const SHOWN = {
  connecting: ["Connecting", "wait", false],
  stalled: ["No pictures come", "wait", true],
  reconnecting: ["Reconnecting", "wait", true],
  paused: ["Paused", "pause", false],
  ended: ["Ended", "stop", true],
  failed: ["Failed", "stop", true],
  "server-lost": ["Connection to the server lost", "wait", false],
  crowded: ["Too many viewers", "wait", false],
  origin: ["The server refuses this page's address", "stop", false],
  opening: ["Opening the picture", "wait", false],
};

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
    const [what, iconName, mayRetry] = shown;
    this.box.dataset.state = state;
    setText(this.box.querySelector(".what"), what);
    setText(this.box.querySelector(".why"), why ?? "");
    setIcon(this.box, iconName);
    this.box.querySelector(".icon").classList.toggle("turning", iconName === "wait");
    this.retry.hidden = !mayRetry;
  }
}
