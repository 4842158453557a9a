// The pictures of one stream: received, decoded, shown and acknowledged, always the newest.

import { toast } from "./dom.js";
import { ReconnectingSocket } from "./sockets.js";

const LENGTH_BYTES = 4;
const utf8 = new TextDecoder();

/** One binary message: `{header, parts}`, each part the bytes of a JPEG; throws where it is not one. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(utf8.decode(new Uint8Array(buffer, LENGTH_BYTES, length)));
  let offset = LENGTH_BYTES + length;
  const parts = header.pictures.map(({ bytes }) => {
    offset += bytes;
    return new Uint8Array(buffer, offset - bytes, bytes);
  });
  return { header, parts };
}

/**
 * The age of a frame when it is shown, whatever the browser's clock says.
 *
 * On the same machine both clocks are one. Elsewhere the fastest message seen so far is taken to have come at once, so
 * the age is the server's value plus the extra delay of this message relative to the fastest one.
 */
function ageClock() {
  const sameClock = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  let fastest = Infinity;
  /** Milliseconds from capture to now. */
  return ({ captured_unix, sent_age_ms }) => {
    const behind = Date.now() - captured_unix * 1000;
    if (sameClock) return Math.max(0, behind);
    // Clocks drift apart over hours: the record fades by a hundredth of a millisecond a frame.
    fastest = Math.min(fastest + 0.01, behind - sent_age_ms);
    return behind - fastest;
  };
}

/** The socket of a stream's pictures. `onpicture(header, bitmaps, age_ms)` draws; it owns the bitmaps and closes them. */
export class VideoFeed {
  constructor({ id, views, onpicture, onstate }) {
    this.views = views;
    this.cells = false;
    this.onpicture = onpicture;
    this.age_ms = ageClock();
    this.waiting = null;
    this.busy = false;
    this.lastShown_ms = 0;
    this.socket = new ReconnectingSocket({
      address: () => `api/streams/${encodeURIComponent(id)}/video?${this._wanted()}`,
      onmessage: (data) => this._received(data),
      onstate,
    });
  }

  start() {
    this.lastShown_ms = performance.now();
    this.socket.start();
  }

  stop() {
    this.socket.stop();
    this.waiting = null;
  }

  /** One or two views, from the next frame on. */
  show(views) {
    this.views = views;
    this.socket.send({ views });
  }

  sendCells(cells) {
    this.cells = cells;
    this.socket.send({ cells });
  }

  gaze(xy) {
    this.socket.send({ gaze: xy });
  }

  _wanted() {
    const query = new URLSearchParams(this.views.map((view) => ["view", view]));
    if (this.cells) query.set("cells", "1");
    return query;
  }

  _received(data) {
    try {
      if (typeof data === "string") {
        const { error } = JSON.parse(data);
        if (error) toast(error, "error");
        return;
      }
      // The server waits for acknowledgements, so at most one message waits here; were there two, the newer one wins.
      this.waiting = { ...unpack(data), socket: this.socket.socket };
    } catch {
      if (typeof data !== "string") toast("A picture came broken and was left out", "error");
      return;
    }
    if (!this.busy) this._work();
  }

  async _work() {
    this.busy = true;
    while (this.waiting) {
      const { header, parts, socket } = this.waiting;
      this.waiting = null;
      const decoded = await Promise.allSettled(parts.map((part) => createImageBitmap(new Blob([part], { type: "image/jpeg" }))));
      const bitmaps = decoded.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
      if (this.socket.wanted && bitmaps.length === parts.length) {
        this.lastShown_ms = performance.now();
        this.onpicture(header, bitmaps, this.age_ms(header));
      } else {
        for (const bitmap of bitmaps) bitmap.close();
      }
      // A socket that was opened meanwhile has numbers of its own.
      if (this.socket.socket === socket) this.socket.send({ ack: header.seq });
    }
    this.busy = false;
  }
}
