// This browser's camera or screen, sent to the server as JPEG over a WebSocket.

import { ApiError } from "./api.js";
import { toast } from "./dom.js";
import { openSocket } from "./sockets.js";

const CAMERA = { width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { ideal: 30 } };
const SCREEN = { width: { max: 1920 }, height: { max: 1920 }, frameRate: { max: 30 } };
const JPEG = { type: "image/jpeg", quality: 0.8 };
const MOST_UNDER_WAY = 2; // pictures that the server has not acknowledged: a network's round trip costs no pictures

const REFUSALS = {
  NotAllowedError: "The browser was not allowed to use it",
  NotFoundError: "This machine has no camera",
  NotReadableError: "The camera is in use by another program",
  OverconstrainedError: "The camera cannot give such pictures",
  AbortError: "The choice was cancelled",
};

/** Why the camera or screen cannot be used on this page, or null. */
export function whyNot(kind) {
  if (!window.isSecureContext) return "Browsers give cameras and screens only to pages at localhost or https";
  const call = kind === "screen" ? "getDisplayMedia" : "getUserMedia";
  return navigator.mediaDevices?.[call] && window.OffscreenCanvas ? null : "This browser cannot send it";
}

function capture(kind) {
  const { mediaDevices } = navigator;
  return kind === "screen" ? mediaDevices.getDisplayMedia({ video: SCREEN }) : mediaDevices.getUserMedia({ video: CAMERA });
}

/** Pictures of a track as they come, `[picture, width, height, seconds]`; those that come while one is used are lost. */
async function* pictures(track) {
  if (window.MediaStreamTrackProcessor) {
    const reader = new MediaStreamTrackProcessor({ track }).readable.getReader();
    for (;;) {
      const { value: frame, done } = await reader.read();
      if (done) return;
      yield [frame, frame.displayWidth, frame.displayHeight, frame.timestamp / 1e6];
      frame.close();
    }
  }
  // Firefox and Safari; a hidden tab gets no pictures in this way.
  const video = Object.assign(document.createElement("video"), { srcObject: new MediaStream([track]), muted: true, playsInline: true });
  await video.play();
  for (;;) {
    const time_ms = await new Promise((resolve) => video.requestVideoFrameCallback((now, { captureTime }) => resolve(captureTime ?? now)));
    yield [video, video.videoWidth, video.videoHeight, time_ms / 1e3];
  }
}

class Sender {
  constructor(socket, track) {
    Object.assign(this, { socket, track });
    this.sent = this.received = 0;
    this.canvas = new OffscreenCanvas(1, 1);
    this.context = this.canvas.getContext("2d", { alpha: false });
  }

  async run() {
    for await (const [picture, width, height, seconds] of pictures(this.track)) {
      if (this.socket.readyState !== WebSocket.OPEN) return;
      if (this.sent - this.received < MOST_UNDER_WAY) await this._send(picture, width, height, seconds);
    }
  }

  /** The last picture again: a still screen gives no new one, and the server must know that somebody is there. */
  again() {
    if (this.last) this._post(performance.now() / 1e3);
  }

  async _send(picture, width, height, seconds) {
    const { canvas } = this;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    this.context.drawImage(picture, 0, 0, width, height);
    this.last = await canvas.convertToBlob(JPEG);
    this._post(seconds);
  }

  _post(seconds) {
    // It may have closed while the picture was compressed.
    if (this.socket.readyState !== WebSocket.OPEN) return;
    this.sent += 1;
    this.socket.send(new Blob([new Float64Array([seconds]), this.last]));
  }
}

/**
 * Sends `kind` ("camera" or "screen") and gives the status of its stream.
 *
 * Throws an ApiError with one line to show.
 */
export async function sendFromBrowser(kind, { name, query = [], preset }) {
  const refused = whyNot(kind);
  if (refused) throw new ApiError(refused);
  const media = await capture(kind).catch((error) => {
    throw new ApiError(REFUSALS[error.name] ?? `The ${kind} cannot be used: ${error.message}`);
  });
  const [track] = media.getVideoTracks();
  const words = new URLSearchParams([["name", name], ...query.map((text) => ["query", text]), ...(preset ? [["preset", preset]] : [])]);
  const socket = openSocket(`api/browser?${words}`);
  const sender = new Sender(socket, track);
  track.addEventListener("ended", () => socket.close(1000, "the camera or screen was switched off"));
  return new Promise((resolve, reject) => {
    let status = null;
    let fault = null;
    socket.onmessage = ({ data }) => {
      const { stream, received, again, error } = JSON.parse(data);
      sender.received = received ?? sender.received;
      fault = error ?? fault;
      if (again) sender.again();
      if (!stream) return;
      status = stream;
      resolve(status);
      sender.run().catch((error) => socket.close(4000, error.message.slice(0, 100)));
    };
    socket.onclose = ({ reason }) => {
      track.stop();
      const why = fault ?? (reason || "the connection to the server broke");
      if (status) toast(`${status.name}: ${why}`, fault ? "error" : "note");
      else reject(new ApiError(why));
    };
  });
}
