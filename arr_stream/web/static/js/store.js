// What the page knows: the server, its streams, and which one is chosen. Parts listen; nobody else keeps a copy.

const listeners = new Map();

/** Call `listener(value)` at each `emit(topic, value)`; gives a function that ends it. */
export function on(topic, listener) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(listener);
  return () => listeners.get(topic).delete(listener);
}

export function emit(topic, value) {
  for (const listener of [...(listeners.get(topic) ?? [])]) listener(value);
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
};

export function setStreams(list) {
  store.streams = new Map(list.map((status) => [status.id, status]));
  if (!store.streams.has(store.chosen)) choose(list[0]?.id ?? null);
  emit("streams", list);
  for (const status of list) emit("status", status);
}

export function setStatus(status) {
  const before = store.streams.get(status.id);
  // A status may overtake the list that names its stream.
  if (!before) return;
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
