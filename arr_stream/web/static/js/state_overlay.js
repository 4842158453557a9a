// What is said over the picture while no new one comes.

import { setIcon, setText } from "./dom.js";

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
