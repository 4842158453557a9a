// Puts the page together.

import { AddDialog } from "./add.js";
import { api, ApiError, NEEDS_TOKEN } from "./api.js";
import { setText } from "./dom.js";
import { listenToKeys, listKeys } from "./keyboard.js";
import { Panel } from "./panel.js";
import { recall, remember } from "./remember.js";
import { ReconnectingSocket } from "./sockets.js";
import { choose, emit, on, setLink, setStatus, setStreams, store } from "./store.js";
import { Streams } from "./streams.js";

const RETRY_MS = 1500;
const ASLEEP_FOR_MS = 60000; // a machine that slept has dead sockets which do not know it
const LINK_WORDS = { connecting: "Connecting", open: "Connected", lost: "Reconnecting" };

const byId = (id) => document.getElementById(id);
const act = (name) => document.querySelector(`.top [data-action=${name}]`);

/** The token came in the address once; it must not stay in the history, nor in what is copied from there. */
function hideToken() {
  const url = new URL(location.href);
  if (!url.searchParams.has("token")) return;
  url.searchParams.delete("token");
  history.replaceState(null, "", url);
}

function askForToken() {
  const dialog = byId("token-dialog");
  if (!dialog.open) dialog.showModal();
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
  else if (event.type === "alert" || event.type === "notice" || event.type === "missed") emit("log", event);
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
      if (why === "origin") setText(byId("link").querySelector(".words"), "The server refuses this page's address");
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

/** What the server is and allows; asked for until it answers. */
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

function showLink(state) {
  const link = byId("link");
  link.dataset.state = state;
  setText(link.querySelector(".words"), LINK_WORDS[state]);
}

/** A choice of the page that is kept, shown by a pressed button and a class. */
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
  });
  byId("help-dialog").querySelector("[data-action=close]").addEventListener("click", () => byId("help-dialog").close());
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    location.assign(`${location.pathname}?token=${encodeURIComponent(byId("token-input").value.trim())}`);
  });
  listKeys(byId("keys"));
  const card = (action) => () => streams.chosen && action(streams.chosen);
  listenToKeys({
    query: card((chosen) => chosen.query.focus()),
    pause: card((chosen) => chosen.togglePause()),
    view: card((chosen) => chosen.views.next()),
    beside: card((chosen) => chosen.views.toggleBeside()),
    region: card((chosen) => chosen.region.toggle()),
    inspect: card((chosen) => chosen.toggleInspect()),
    gaze: card((chosen) => chosen.toggleGaze()),
    full: card((chosen) => chosen.toggleFull()),
    cancel: card((chosen) => chosen.region.cancel()),
    ask: () => {
      if (!document.body.classList.contains("with-panel")) showPanel();
      panel.open("answers");
      panel.answers.question.focus();
    },
    add: () => add.open(),
    layout,
    panel: showPanel,
    theme,
    help,
    choose: (number) => {
      const id = [...store.streams.keys()][number - 1];
      if (!id) return;
      choose(id);
      streams.chosen.element.scrollIntoView({ block: "nearest" });
    },
  });
}

async function main() {
  hideToken();
  window.addEventListener(NEEDS_TOKEN, askForToken);
  on("link", showLink);
  const streams = new Streams(byId("streams"));
  const panel = new Panel(byId("panel"));
  wire(streams, panel, new AddDialog());
  await learn();
  followEvents();
}

main();
