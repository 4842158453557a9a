// A WebSocket that comes back by itself.

import { NEEDS_TOKEN } from "./api.js";
import { here } from "./dom.js";

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 1500;
const PATIENT_AFTER = 60; // attempts; then the server is likely gone for good
const PATIENT_PAUSE_MS = 8000;
const CROWDED_PAUSE_MS = 5000;
const OPEN_WITHIN_MS = 8000;

/** Why a socket was closed for good, by the server's close codes. */
const FINAL = { 4401: "token", 4403: "origin", 4404: "gone", 4410: "removed" };

/** A new WebSocket to a path of this server. */
export function openSocket(path) {
  const url = here(path);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  return socket;
}

/**
 * Keeps one socket open until `stop()`.
 *
 * `address()` gives path and query at each attempt. `onmessage(data)` gets texts and ArrayBuffers. `onstate(state, why)`:
 * `open`; `lost`, another attempt follows; `refused`, the server said no for good.
 */
export class ReconnectingSocket {
  constructor({ address, onmessage, onopen = () => {}, onstate = () => {} }) {
    Object.assign(this, { address, onmessage, onopen, onstate });
    this.socket = null;
    this.timer = 0;
    this.attempts = 0;
    this.wanted = false;
  }

  start() {
    if (this.wanted) return;
    this.wanted = true;
    this.attempts = 0;
    this._open();
  }

  stop() {
    this.wanted = false;
    this._drop();
  }

  /** Open anew now, where the old one may be dead without knowing it. */
  restart() {
    if (!this.wanted) return;
    this._drop();
    this._open();
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  send(message) {
    if (this.isOpen) this.socket.send(JSON.stringify(message));
  }

  _open() {
    const socket = openSocket(this.address());
    this.socket = socket;
    const late = setTimeout(() => socket.close(), OPEN_WITHIN_MS);
    socket.onopen = () => {
      clearTimeout(late);
      this.onopen();
      this.onstate("open", null);
    };
    socket.onmessage = (event) => {
      this.attempts = 0;
      this.onmessage(event.data);
    };
    socket.onclose = (event) => {
      clearTimeout(late);
      if (this.socket === socket) this._closed(event.code);
    };
  }

  _closed(code) {
    this.socket = null;
    if (!this.wanted) return;
    if (FINAL[code]) {
      this.wanted = false;
      if (code === 4401) window.dispatchEvent(new Event(NEEDS_TOKEN));
      this.onstate("refused", FINAL[code]);
      return;
    }
    this.attempts += 1;
    const crowded = code === 1013;
    this.onstate("lost", crowded ? "crowded" : "broken");
    this.timer = setTimeout(() => this._open(), crowded ? CROWDED_PAUSE_MS : this._pause());
  }

  _pause() {
    if (this.attempts > PATIENT_AFTER) return PATIENT_PAUSE_MS;
    // Some jitter, so that twenty tabs do not come back in the same instant.
    return Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 1.6 ** (this.attempts - 1)) * (0.8 + 0.4 * Math.random());
  }

  _drop() {
    clearTimeout(this.timer);
    const { socket } = this;
    this.socket = null;
    if (!socket) return;
    const connecting = socket.readyState === WebSocket.CONNECTING;
    socket.onmessage = socket.onclose = null;
    socket.onopen = connecting ? () => socket.close(1000) : null;
    if (!connecting) socket.close(1000);
  }
}
