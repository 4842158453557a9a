// State of the page: the server, its streams, and the selected one. Other parts subscribe and keep no copy.
// Also the values that the browser stores between visits; without storage they last as long as the page.

import { ARROWS } from "./dom.js";

const PREFIX = "arr-stream.";
const listeners = new Map();
const held = new Map();

/** Call `listener(value)` at each `emit(topic, value)`. */
export function on(topic, listener) {
  listeners.set(topic, [...(listeners.get(topic) ?? []), listener]);
}

export function emit(topic, value) {
  for (const listener of listeners.get(topic) ?? []) listener(value);
}

/**
 * Topics: `streams` (list changed), `status` (one changed), `chosen`, `summary`, `asking`, `text`, `answer`, `log`,
 * `link` (connection to the server), `info`, `cells` (mark cells over a picture), `follow` (events came back).
 */
export const store = {
  info: null,
  streams: new Map(),
  chosen: null,
  link: "connecting",

  /** The status of the chosen stream. */
  get status() {
    return this.streams.get(this.chosen);
  },
};

/** Call `listener(status)` at each status of the chosen stream. */
export function onChosenStatus(listener) {
  on("status", (status) => status.id === store.chosen && listener(status));
}

export function setStreams(list) {
  store.streams = new Map(list.map((status) => [status.id, status]));
  if (!store.streams.has(store.chosen)) choose(list[0]?.id ?? null);
  emit("streams", list);
  for (const status of list) emit("status", status);
}

export function setStatus(status) {
  // A status may overtake the list that names its stream.
  if (!store.streams.has(status.id)) return;
  store.streams.set(status.id, status);
  emit("status", status);
}

export function choose(id) {
  if (store.chosen === id) return;
  store.chosen = id;
  emit("chosen", id);
}

export function setLink(state) {
  if (store.link === state) return;
  store.link = state;
  emit("link", state);
}

export function recall(key, otherwise) {
  if (held.has(key)) return held.get(key);
  try {
    const text = localStorage.getItem(PREFIX + key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function remember(key, value) {
  held.set(key, value);
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    // kept in `held`
  }
}

/** A bounded list of earlier entries, newest last, through which the up and down keys of an input walk. */
export class History {
  constructor(key, input = null, most = 40) {
    this.key = key;
    this.most = most;
    const kept = recall(key, []);
    this.place = null;
    this.entries = Array.isArray(kept) ? kept.filter((entry) => typeof entry === "string") : [];
    if (input) this.attach(input);
  }

  /** An entry that comes again moves to the end. */
  add(text) {
    this.place = null;
    this.entries = [...this.entries.filter((entry) => entry !== text), text].slice(-this.most);
    remember(this.key, this.entries);
  }

  attach(input) {
    input.addEventListener("keydown", (event) => {
      const direction = ARROWS[event.key]?.[1];
      if (!direction || event.isComposing) return;
      const text = this._step(direction, input.value);
      if (text === null) return;
      event.preventDefault();
      input.value = text;
      input.setSelectionRange(text.length, text.length);
    });
    input.addEventListener("input", () => (this.place = null));
  }

  /** Return the previous (-1) or next (+1) entry relative to the input's text, or null. */
  _step(direction, current) {
    if (this.place === null) {
      if (direction > 0 || !this.entries.length) return null;
      this.draft = current;
      this.place = this.entries.length;
    }
    this.place = Math.max(0, this.place + direction);
    if (this.place < this.entries.length) return this.entries[this.place];
    this.place = null;
    return this.draft;
  }
}
