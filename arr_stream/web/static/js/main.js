// Puts the page together: its parts, the connection to the server, and the keys.

import { AddDialog } from "./add.js";
import { api, ApiError, NEEDS_TOKEN } from "./api.js";
import { Streams } from "./card.js";
import { byId, h, setText } from "./dom.js";
import { Panel } from "./panel.js";
import { ReconnectingSocket } from "./sockets.js";
import { choose, emit, on, recall, remember, setLink, setStatus, setStreams, store } from "./store.js";

const RETRY_MS = 1500;
const ASLEEP_FOR_MS = 60000; // a machine that slept has dead sockets which do not know it
const LINK_WORDS = { connecting: "Connecting", open: "Connected", lost: "Reconnecting" };

const TYPED = "input:not([type=checkbox], [type=range]), textarea, select, [contenteditable]";
const PRESSED = "button, a, summary, input, label, [role=tab]";

const act = (name) => document.querySelector(`.top [data-action=${name}]`);

/** Remove the token from the address, so that it is neither in the history nor copied with the address. */
function hideToken() {
  const url = new URL(location.href);
  if (!url.searchParams.has("token")) return;
  url.searchParams.delete("token");
  history.replaceState(null, "", url);
}

function onEvent(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    return; // not an event
  }
  if (event.type === "streams") setStreams(event.streams);
  else if (event.type === "state") setStatus(event.status);
  else if (["alert", "notice", "missed"].includes(event.type)) emit("log", event);
  else emit(event.type, event);
}

function followEvents() {
  let opened = 0;
  const events = new ReconnectingSocket({
    address: () => "api/events",
    onmessage: onEvent,
    onopen: () => opened++ && emit("follow"),
    onstate: (state, why) => {
      setLink(state === "open" ? "open" : "lost");
      if (why === "origin") showLink("lost", "The server refuses this page's address");
    },
  });
  let hidden_ms = 0;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hidden_ms = Date.now();
    else if (hidden_ms && Date.now() - hidden_ms > ASLEEP_FOR_MS) events.restart();
  });
  window.addEventListener("online", () => events.restart());
  events.start();
}

/** Fetch the server's facts and permissions; retry until it answers. */
async function learn() {
  for (;;) {
    try {
      store.info = await api.info();
      emit("info", store.info);
      return;
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return new Promise(() => {}); // the page is opened anew
      setLink("lost");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

function showLink(state, words = LINK_WORDS[state]) {
  const link = byId("link");
  link.dataset.state = state;
  setText(link.querySelector(".words"), words);
}

/** A stored choice of the page, shown by a pressed button and a class. */
function lasting(name, initial) {
  const button = act(name);
  const show = (value) => {
    document.body.classList.toggle(`with-${name}`, value);
    button.setAttribute("aria-pressed", String(value));
  };
  const toggle = () => {
    const value = button.getAttribute("aria-pressed") !== "true";
    remember(name, value);
    show(value);
  };
  button.addEventListener("click", toggle);
  show(recall(name, initial));
  return toggle;
}

/** Keys that work on the whole page, except in text fields: key, description, function. */
function listenToKeys(keys) {
  const shown = (key) => (key === " " ? "space" : key);
  byId("keys").replaceChildren(...keys.flatMap(([key, about]) => [h("dt", {}, h("kbd", {}, shown(key))), h("dd", {}, about)]));
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const typed = target.matches?.(TYPED);
    if (typed && key === "Escape") target.blur();
    else if (typed || (key === " " && target.matches?.(PRESSED))) return;
    const name = key === "Escape" ? "Esc" : key.replace(/^[1-9]$/, "1-9");
    const action = keys.find(([own]) => own === name)?.[2];
    if (!action) return;
    if (key !== "Escape") event.preventDefault();
    action(Number(key));
  });
}

function wire(streams, panel, add) {
  const help = () => byId("help-dialog").showModal();
  const theme = () => window.arrTheme.toggle();
  const layout = lasting("layout", false);
  const showPanel = lasting("panel", true);
  act("theme").addEventListener("click", theme);
  act("help").addEventListener("click", help);
  document.addEventListener("click", (event) => {
    const action = event.target.closest?.("[data-action]")?.dataset.action;
    if (action === "add-stream") add.open();
    if (action === "start-browser-camera") add.startCamera();
    if (action === "close") event.target.closest("dialog").close();
  });
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    location.assign(`${location.pathname}?token=${encodeURIComponent(byId("token-input").value.trim())}`);
  });
  const card = (action) => () => streams.chosen && action(streams.chosen);
  const ask = () => {
    if (!document.body.classList.contains("with-panel")) showPanel();
    panel.open("answers");
    panel.answers.question.focus();
  };
  const chooseByNumber = (number) => {
    const id = [...store.streams.keys()][number - 1];
    if (!id) return;
    choose(id);
    streams.chosen.element.scrollIntoView({ block: "nearest" });
  };
  listenToKeys([
    ["/", "edit the query", card((chosen) => chosen.query.focus())],
    [" ", "pause or resume", card((chosen) => chosen.togglePause())],
    ["v", "next view", card((chosen) => chosen.views.next())],
    ["b", "second view", card((chosen) => chosen.views.toggleBeside())],
    ["r", "mark a region", card((chosen) => chosen.region.toggle())],
    ["i", "inspect cells", card((chosen) => chosen.toggleInspect())],
    ["g", "pointer as gaze", card((chosen) => chosen.toggleGaze())],
    ["f", "full screen", card((chosen) => chosen.toggleFull())],
    ["a", "ask the model", ask],
    ["n", "add a stream", () => add.open()],
    ["l", "one stream large", layout],
    ["p", "side panel", showPanel],
    ["t", "dark or light", theme],
    ["1-9", "choose a stream", chooseByNumber],
    ["Esc", "cancel", card((chosen) => chosen.region.cancel())],
    ["?", "this list", help],
  ]);
}

async function main() {
  hideToken();
  window.addEventListener(NEEDS_TOKEN, () => byId("token-dialog").open || byId("token-dialog").showModal());
  on("link", (state) => showLink(state));
  const streams = new Streams(byId("streams"));
  const panel = new Panel(byId("panel"));
  wire(streams, panel, new AddDialog());
  await learn();
  followEvents();
}

main();
