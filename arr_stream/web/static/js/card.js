// One stream: its picture, its tools, its query, its figures.

import { api } from "./api.js";
import { fromTemplate, say, setIcon, setText, shortName } from "./dom.js";
import { Figures } from "./figures.js";
import { GazeTool, Inspector } from "./inspect.js";
import { Stage, StateOverlay } from "./picture.js";
import { QueryBox } from "./query.js";
import { RegionTool } from "./region.js";
import { choose, store } from "./store.js";
import { Timeline } from "./timeline.js";
import { attempt } from "./toasts.js";
import { VideoFeed } from "./video.js";
import { ViewChooser } from "./views.js";

const HIDDEN_FOR_MS = 3000; // a tab that was left for longer needs no pictures
const SILENT_FOR_MS = 8000; // frames are made and none comes: the connection is dead without knowing it
const ANSWERED = "226 112 255";

export class Card {
  constructor(id) {
    this.id = id;
    this.element = fromTemplate("card-template");
    this.element.dataset.streamId = id;
    this.element.id = `stream-${id}`;
    this.frames = 0;
    this.framesOfServer = 0;
    this.feedState = null;
    this.answerCells = null;
    this._parts();
    this._buttons();
    this._watchVisibility();
  }

  _parts() {
    const { element, id } = this;
    this.stage = new Stage(element.querySelector(".stage"));
    this.overlay = new StateOverlay(this.stage.element);
    this.figures = new Figures(element.querySelector(".figures"));
    this.timeline = new Timeline(element.querySelector(".line"));
    this.query = new QueryBox(element, id);
    this.views = new ViewChooser(element, (views) => this._viewsChanged(views));
    this.stage.arrange(this.views.captions);
    this.region = new RegionTool(this.stage, {
      onmark: (xywh) => this.query.mark(xywh),
      onmode: (on) => this._mode("region", on, "Drag, or move the box with the arrow keys · Shift changes its size · Enter marks · Esc cancels"),
    });
    this.inspector = new Inspector(this.stage, { labels: () => store.streams.get(id)?.query ?? [] });
    this.feed = new VideoFeed({
      id,
      views: this.views.views,
      onpicture: (header, bitmaps, age_ms) => this._shown(header, bitmaps, age_ms),
      onstate: (state, why) => this._feedState(state, why),
    });
    this.gaze = new GazeTool(this.stage, (xy) => this.feed.gaze(xy));
    this.paintAnswer = (context, scale) => this._paintAnswer(context, scale);
  }

  _buttons() {
    const actions = {
      pause: () => this.togglePause(),
      full: () => this.toggleFull(),
      remove: () => this.remove(),
      retry: () => attempt(() => api.retry(this.id)),
      region: () => this.region.toggle(),
      inspect: () => this.toggleInspect(),
      gaze: () => this.toggleGaze(),
    };
    for (const [action, listener] of Object.entries(actions)) {
      this._button(action).addEventListener("click", listener);
    }
    this.element.querySelector(".choose").addEventListener("click", () => choose(this.id));
    // Not when the pointer goes down: choosing may move the card, and the click would then miss its target.
    this.element.addEventListener("click", () => choose(this.id));
    this.element.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && choose(this.id));
  }

  _button(action) {
    return this.element.querySelector(`[data-action=${action}]`);
  }

  /** Pictures are asked for only while they can be seen. */
  _watchVisibility() {
    this.near = true;
    this.sleeping = 0;
    this.seen = new IntersectionObserver(
      ([entry]) => {
        this.near = entry.isIntersecting;
        this._wakeOrSleep();
      },
      { rootMargin: "600px" },
    );
    this.seen.observe(this.stage.element);
    this.onvisibility = () => this._wakeOrSleep();
    document.addEventListener("visibilitychange", this.onvisibility);
    this._wakeOrSleep();
  }

  _wakeOrSleep() {
    clearTimeout(this.sleeping);
    if (this.near && !document.hidden) this.feed.start();
    else this.sleeping = setTimeout(() => this.feed.stop(), HIDDEN_FOR_MS);
  }

  _shown(header, bitmaps, age_ms) {
    this.stage.draw(header, bitmaps);
    this.element.dataset.frames = String(++this.frames);
    const { seq, index, captured_unix } = header;
    window.dispatchEvent(new CustomEvent("arr-picture", { detail: { stream: this.id, seq, index, captured_unix } }));
    if (this.frames === 1) this._restate();
    this.figures.frame(header, age_ms);
    this.query.scores(header.query_scores ?? []);
    this.inspector.frame(header);
  }

  _feedState(state, why) {
    this.feedState = state === "open" ? null : why;
    this._restate();
  }

  /** A new status of the stream. */
  update(status, number) {
    const { element } = this;
    element.dataset.state = status.state;
    setText(element.querySelector(".number"), String(number));
    setText(element.querySelector(".choose"), shortName(status));
    element.querySelector(".choose").title = status.source;
    element.setAttribute("aria-label", shortName(status));
    setText(element.querySelector(".state .words"), status.state);
    const pause = this._button("pause");
    pause.setAttribute("aria-pressed", String(status.paused));
    setIcon(pause, status.paused ? "play" : "pause");
    if (status.size_wh) this.stage.size_wh = status.size_wh;
    this.query.update(status);
    this.region.showMarked(status.region);
    this.figures.status(status, status.state === "live");
    this._revive(status);
    this._restate();
  }

  /** Opens the pictures anew where the socket was closed for good, or is dead, and yet the stream runs. */
  _revive(status) {
    const refused = this.feedState === "removed" || this.feedState === "gone";
    if (refused && status.state === "live") {
      this.feedState = null;
      this._wakeOrSleep();
      return;
    }
    const moved = status.frames !== this.framesOfServer;
    this.framesOfServer = status.frames;
    if (!moved || status.state !== "live" || document.hidden || !this.feed.socket.isOpen) return;
    if (performance.now() - this.feed.lastShown_ms < SILENT_FOR_MS) return;
    this.feed.lastShown_ms = performance.now();
    this.feed.socket.restart();
  }

  _restate() {
    const status = store.streams.get(this.id);
    if (!status) return;
    const server = store.link === "lost" || this.feedState === "broken" ? "server-lost" : null;
    if (server) this.overlay.show(server, "The picture comes back by itself");
    else if (this.feedState === "crowded" || this.feedState === "origin") this.overlay.show(this.feedState);
    else if (status.state !== "live") this.overlay.show(status.state, status.message);
    else this.overlay.show(this.frames ? null : "opening");
  }

  linkChanged() {
    this._restate();
  }

  _viewsChanged(views) {
    this.stage.arrange(this.views.captions);
    this.feed.show(views);
    say(`Showing ${this.views.captions.join(" beside ")}`);
  }

  togglePause() {
    const paused = !store.streams.get(this.id)?.paused;
    return attempt(() => api.change(this.id, { paused }));
  }

  toggleInspect() {
    this.inspector.toggle();
    this.feed.sendCells(this.inspector.on);
    this._mode("inspect", this.inspector.on, "");
  }

  toggleGaze() {
    this.gaze.toggle();
    this._mode("gaze", this.gaze.on, "");
  }

  toggleFull() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.stage.element.requestFullscreen?.().catch(() => {}); // refused by the browser: nothing is lost
  }

  async remove() {
    if (await attempt(() => api.remove(this.id).then(() => true))) say("Stream removed");
  }

  _mode(action, on, hint) {
    this._button(action).setAttribute("aria-pressed", String(on));
    if (!hint) return;
    const line = this.stage.element.querySelector(".mode");
    line.hidden = !on;
    setText(line, on ? hint : "");
  }

  /** Cells `[x0, y0, x1, y1, share, frame]` that an answer rested on; null for none. */
  markCells(cells) {
    this.answerCells = cells;
    if (cells) this.stage.addPainter(this.paintAnswer);
    else this.stage.removePainter(this.paintAnswer);
  }

  _paintAnswer(context, scale) {
    const most = Math.max(...this.answerCells.map((cell) => cell[4]), 1e-9);
    for (const [x0, y0, x1, y1, share] of this.answerCells) {
      const strength = share / most;
      const box = [x0 * scale[0], y0 * scale[1], (x1 - x0) * scale[0], (y1 - y0) * scale[1]];
      context.fillStyle = `rgb(${ANSWERED} / ${0.08 + 0.27 * strength})`;
      context.fillRect(...box);
      context.lineWidth = 1.5;
      context.strokeStyle = `rgb(${ANSWERED} / ${0.4 + 0.6 * strength})`;
      context.strokeRect(...box);
    }
  }

  close() {
    clearTimeout(this.sleeping);
    document.removeEventListener("visibilitychange", this.onvisibility);
    this.seen.disconnect();
    this.feed.stop();
    this.figures.close();
    this.timeline.close();
    this.stage.close();
    this.element.remove();
  }
}
