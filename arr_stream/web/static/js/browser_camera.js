// This browser's camera or screen, sent to the server by WebRTC.

import { api, ApiError } from "./api.js";
import { toast } from "./dom.js";
import { on, store } from "./store.js";

const VIDEO = { width: { ideal: 640 }, height: { ideal: 360 }, frameRate: { ideal: 30 } };
const MOST_BITS = 2_500_000;

/** Connections by stream, so that a removed stream lets go of the camera. */
const connections = new Map();

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
  return navigator.mediaDevices?.[call] && window.RTCPeerConnection ? null : "This browser cannot send it";
}

function capture(kind) {
  const { mediaDevices } = navigator;
  return kind === "screen" ? mediaDevices.getDisplayMedia({ video: { frameRate: 30 }, audio: false }) : mediaDevices.getUserMedia({ video: VIDEO, audio: false });
}

async function limitRate(sender) {
  const parameters = sender.getParameters();
  if (!parameters.encodings?.length) return;
  parameters.encodings[0].maxBitrate = MOST_BITS;
  parameters.degradationPreference = "maintain-framerate";
  await sender.setParameters(parameters).catch(() => {}); // a wish, which some browsers refuse
}

/**
 * Sends `kind` ("camera" or "screen") and gives the status of its stream.
 *
 * Throws an ApiError with one line to show.
 */
export async function sendFromBrowser(kind, options = {}) {
  const refused = whyNot(kind);
  if (refused) throw new ApiError(refused);
  const media = await capture(kind).catch((error) => {
    throw new ApiError(REFUSALS[error.name] ?? `The ${kind} cannot be used: ${error.message}`);
  });
  const peer = new RTCPeerConnection({ iceServers: [] });
  const end = () => {
    for (const track of media.getTracks()) track.stop();
    peer.close();
  };
  try {
    const status = await connect(peer, media, kind, options);
    connections.set(status.id, end);
    follow(peer, media, status, end);
    return status;
  } catch (error) {
    end();
    throw error instanceof ApiError ? error : new ApiError(`The ${kind} could not be connected: ${error.message}`);
  }
}

async function connect(peer, media, kind, options) {
  const [track] = media.getVideoTracks();
  track.contentHint = kind === "screen" ? "detail" : "motion";
  const sender = peer.addTrack(track, media);
  await peer.setLocalDescription(await peer.createOffer());
  // Candidates need not be waited for: this side calls the server, whose answer names its own.
  const { sdp, type } = peer.localDescription;
  const answer = await api.browser({ sdp, type, ...options });
  await peer.setRemoteDescription({ sdp: answer.sdp, type: answer.type });
  await limitRate(sender);
  return answer.stream;
}

function follow(peer, media, status, end) {
  const stop = (why) => {
    if (!connections.delete(status.id)) return;
    end();
    toast(`${status.name}: ${why}`);
  };
  media.getVideoTracks()[0].addEventListener("ended", () => stop("the camera or screen was switched off"));
  peer.addEventListener("connectionstatechange", () => {
    if (peer.connectionState === "failed") stop("the connection failed");
  });
}

on("streams", () => {
  for (const [id, end] of connections) {
    if (store.streams.has(id)) continue;
    connections.delete(id);
    end();
  }
});
window.addEventListener("pagehide", () => connections.forEach((end) => end()));
