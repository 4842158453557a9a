// The streams, a card each: its picture, its tools, its query, its figures.

import { api, attempt } from "./api.js";
import { fromTemplate, say, setIcon, setText, shortName } from "./dom.js";
import { Figures, Timeline } from "./figures.js";
import { Stage, StateOverlay, ViewChooser } from "./picture.js";
import { QueryBox } from "./query.js";
import { choose, on, store } from "./store.js";
import { GazeTool, Inspector, RegionTool } from "./tools.js";
import { VideoFeed } from "./video.js";

const HIDDEN_FOR_MS = 3000; // a tab that was left for longer needs no pictures
const SILENT_FOR_MS = 8000; // frames are made and none comes: the connection is dead without knowing it
const ANSWERED = "226 112 255";
const REGION_HINT = "Drag, or move the box with the arrow keys · Shift changes its size · Enter marks · Esc cancels";

class Card {
  constructor(id) {
    this.id = id;
    this.element = fromTemplate("card-template");
    this.element.dataset.streamId = id;
    this.element.id = `stream-${id}`;
    this.frames = 0;
    this.framesOfServer = 0;
    this.feedState = null;
    this._parts();
    this._buttons();
    this._watchVisibility();
  }

  get status() {
    return store.streams.get(this.id);
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
      onmode: (on) => this._regionMode(on),
    });
    this.inspector = new Inspector(this.stage, () => this.status?.query ?? []);
    this.feed = new VideoFeed({
      id,
      views: this.views.views,
      onpicture: (header, bitmaps, age_ms) => this._shown(header, bitmaps, age_ms),
      onstate: (state, why) => {
        this.feedState = state === "open" ? null : why;
        this.restate();
      },
    });
    this.gaze = new GazeTool(this.stage, (xy) => this.feed.gaze(xy));
    this.paintAnswer = (context, at) => this._paintAnswer(context, at);
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
    for (const [action, listener] of Object.entries(actions)) this._button(action).addEventListener("click", listener);
    // Not when the pointer goes down: choosing may move the card, and the click would then miss its target.
    this.element.addEventListener("click", () => choose(this.id));
    this.element.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && choose(this.id));
  }

  _button(action) {
    return this.element.querySelector(`[data-action=${action}]`);
  }

  /** Pictures are requested only while they are visible. */
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
    if (this.frames === 1) this.restate();
    this.figures.frame(header, age_ms);
    this.query.scores(header.query_scores ?? []);
    this.region.follow(header.region);
    this.query.follow(header.region);
    this.inspector.frame(header);
  }

  /** A new status of the stream. */
  update(status, number) {
    const { element } = this;
    element.dataset.state = status.state;
    setText(element.querySelector(".number"), String(number));
    const name = element.querySelector(".choose");
    setText(name, shortName(status));
    name.title = status.source;
    element.setAttribute("aria-label", shortName(status));
    setText(element.querySelector(".state .words"), status.state);
    this._press("pause", status.paused);
    setIcon(this._button("pause"), status.paused ? "play" : "pause");
    if (status.size_wh) this.stage.size_wh = status.size_wh;
    this.query.update(status);
    if (!status.region) this.region.follow(null);
    this.figures.status(status, status.state === "live");
    this._revive(status);
    this.restate();
  }

  /** Opens the pictures anew where the socket was closed for good, or is dead, and yet the stream runs. */
  _revive(status) {
    if (["removed", "gone"].includes(this.feedState) && status.state === "live") {
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

  /** Show over the picture why no new one arrives, if so. */
  restate() {
    const { status } = this;
    if (!status) return;
    if (store.link === "lost" || this.feedState === "broken") this.overlay.show("server-lost", "The page reconnects automatically");
    else if (["crowded", "origin"].includes(this.feedState)) this.overlay.show(this.feedState);
    else if (status.state !== "live") this.overlay.show(status.state, status.message);
    else this.overlay.show(this.frames ? null : "opening");
  }

  _viewsChanged(views) {
    this.stage.arrange(this.views.captions);
    this.feed.show(views);
    say(`Showing ${this.views.captions.join(" beside ")}`);
  }

  togglePause() {
    return attempt(() => api.change(this.id, { paused: !this.status?.paused }));
  }

  toggleInspect() {
    this.inspector.toggle();
    this.feed.sendCells(this.inspector.on);
    this._press("inspect", this.inspector.on);
  }

  toggleGaze() {
    this.gaze.toggle();
    this._press("gaze", this.gaze.on);
  }

  toggleFull() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.stage.element.requestFullscreen?.().catch(() => {}); // refused by the browser: nothing is lost
  }

  async remove() {
    if (await attempt(() => api.remove(this.id).then(() => true))) say("Stream removed");
  }

  _press(action, on) {
    this._button(action).setAttribute("aria-pressed", String(on));
  }

  _regionMode(on) {
    const line = this.stage.element.querySelector(".mode");
    line.hidden = !on;
    setText(line, on ? REGION_HINT : "");
    this._press("region", on);
  }

  /** Mark cells `[x0, y0, x1, y1, share, frame]` that an answer used; null for none. */
  markCells(cells) {
    this.answerCells = cells;
    this.stage.paintBy(this.paintAnswer, Boolean(cells));
  }

  _paintAnswer(context, at) {
    const most = Math.max(...this.answerCells.map((cell) => cell[4]), 1e-9);
    for (const cell of this.answerCells) {
      const strength = cell[4] / most;
      const box = at(...cell);
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

/** The cards of all streams, in the order in which the streams were added. */
export class Streams {
  constructor(holder) {
    this.holder = holder;
    this.cards = new Map();
    this.empty = null;
    on("streams", (list) => this._list(list));
    on("status", (status) => this.cards.get(status.id)?.update(status, this._number(status.id)));
    on("chosen", () => this._mark());
    on("link", () => this.cards.forEach((card) => card.restate()));
    on("summary", ({ stream, points }) => this.cards.get(stream)?.timeline.add(points));
    on("cells", ({ stream, cells }) => this.cards.get(stream)?.markCells(cells));
    window.addEventListener("arr-theme", () => this.cards.forEach((card) => card.timeline.draw()));
  }

  get chosen() {
    return this.cards.get(store.chosen) ?? null;
  }

  _number(id) {
    return [...store.streams.keys()].indexOf(id) + 1;
  }

  _list(list) {
    for (const [id, card] of this.cards) {
      if (store.streams.has(id)) continue;
      this.cards.delete(id);
      card.close();
    }
    for (const { id } of list) {
      if (this.cards.has(id)) continue;
      const card = new Card(id);
      this.cards.set(id, card);
      this.holder.append(card.element);
    }
    this.holder.dataset.count = String(this.cards.size);
    this._sayEmpty();
    this._mark();
  }

  _sayEmpty() {
    if (this.cards.size) {
      this.empty?.remove();
      this.empty = null;
    } else if (!this.empty) {
      this.empty = fromTemplate("empty-template");
      this.holder.append(this.empty);
    }
  }

  _mark() {
    for (const [id, { element }] of this.cards) {
      element.classList.toggle("chosen", id === store.chosen);
      element.querySelector(".choose").setAttribute("aria-pressed", String(id === store.chosen));
    }
  }
}
