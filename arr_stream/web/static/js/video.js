// The pictures of one stream: received, decoded, shown and acknowledged, always the newest.

import { ReconnectingSocket } from "./sockets.js";
import { toast } from "./toasts.js";

const LENGTH_BYTES = 4;
const utf8 = new TextDecoder();

/** One binary message: `{header, parts}`, each part the bytes of a JPEG; throws where it is not one. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(utf8.decode(new Uint8Array(buffer, LENGTH_BYTES, length)));
  let offset = LENGTH_BYTES + length;
  const parts = header.pictures.map(({ bytes }) => {
    const part = new Uint8Array(buffer, offset, bytes);
    offset += bytes;
    return part;
  });
  return { header, parts };
}

/**
 * The age of a frame when it is shown, whatever the browser's clock says.
 *
 * On the same machine both clocks are one. Elsewhere the fastest message seen so far is taken to have come at once, so
 * that the age is what the server measured plus what this message lost on the way against the fastest.
 */
class AgeClock {
  constructor() {
    this.sameClock = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
    this.fastest = Infinity;
  }

  /** Milliseconds from capture to now. */
  age_ms(header) {
    const behind = Date.now() - header.captured_unix * 1000;
    if (this.sameClock) return Math.max(0, behind);
    const way = behind - header.sent_age_ms;
    // Clocks drift apart over hours: the record fades by a hundredth of a millisecond a frame.
    this.fastest = Math.min(this.fastest + 0.01, way);
    return header.sent_age_ms + (way - this.fastest);
  }
}

/** The socket of a stream's pictures. `onpicture(header, bitmaps, age_ms)` draws; it owns the bitmaps and closes them. */
export class VideoFeed {
  constructor({ id, views, onpicture, onstate }) {
    this.views = views;
    this.cells = false;
    this.onpicture = onpicture;
    this.clock = new AgeClock();
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

  sendCells(wanted) {
    if (this.cells === wanted) return;
    this.cells = wanted;
    this.socket.send({ cells: wanted });
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
    if (typeof data === "string") {
      this._told(data);
      return;
    }
    // The server waits for acknowledgements, so at most one message waits here; were there two, the newer one wins.
    try {
      this.waiting = { ...unpack(data), socket: this.socket.socket };
    } catch {
      toast("A picture came broken and was left out", "error");
      return;
    }
    if (!this.busy) this._work();
  }

  _told(text) {
    try {
      const { error } = JSON.parse(text);
      if (error) toast(error, "error");
    } catch {
      // not for us
    }
  }

  async _work() {
    this.busy = true;
    while (this.waiting) {
      const { header, parts, socket } = this.waiting;
      this.waiting = null;
      const decoded = await Promise.allSettled(
        parts.map((part) => createImageBitmap(new Blob([part], { type: "image/jpeg" }))),
      );
      const bitmaps = decoded.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
      if (this.socket.wanted && bitmaps.length === parts.length) {
        this.lastShown_ms = performance.now();
        this.onpicture(header, bitmaps, this.clock.age_ms(header));
      } else {
        for (const bitmap of bitmaps) bitmap.close();
      }
      // A socket that was opened meanwhile has numbers of its own.
      if (this.socket.socket === socket) this.socket.send({ ack: header.seq });
    }
    this.busy = false;
  }
}
