"""Keeps a region on its object: carried along the flow, and corrected by what the object looks like.

Chained warping drifts; a look at appearance costs less than a better flow and is worth more. On the frame where the
region is known, a small classifier learns object against surroundings; on each later frame, at every place x,

    logit p_t(x) = logit(prior_t(x)) + clip(g(cues_t(x)))        g: the classifier's score
    prior_t      = blur(warp(p_t-1)), pulled towards ignorance where the flow leaves the picture unexplained

The blur lets the border move by a pixel or two a frame; the prior keeps look-alikes elsewhere out.

The classifier is a ridge regression on fixed random rectified features of the cues (the "extreme learning machine" of
Huang, Zhu and Siew, Neurocomputing 2006): it is learned in closed form within milliseconds and needs no weights. The
cues are colour, colour of the neighbourhood at two scales, texture, and the place relative to the object's own centre
and spread, so that "the black below" and "the black above" can be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.motion.camera import camera_flow
from arr_stream.motion.flow import Flow, resize_offsets, source_map
from arr_stream.types import ByteArray, FloatArray

SEED = 2
_TINY = np.float32(1e-6)


@dataclass(frozen=True, slots=True)
class Anchoring:
    """How strongly each part speaks; one set for all footage.

    Args:
        hidden: Random features of the classifier.
        ridge: Regularisation, relative to the mean square of a feature.
        blurs_px: Sides of the two neighbourhoods whose mean colour is a cue.
        place: Weight of the place relative to the object among the cues.
        ring_px: Surroundings nearer than half of this are learned with most of the weight.
        far: Share of the background's weight that lies beyond the ring.
        gain: Logits per unit of the classifier's score, which is about -1 to 1.
        limit: Largest evidence of one frame, in logits.
        blur_px: Side of the prior's blur.
        floor, ceiling: Bounds of the prior, so that a frame can overrule it.
        ignorance: Prior where the flow explains nothing.
        doubt: How much of the flow's residual counts as not explained.
    """

    hidden: int = 128
    ridge: float = 3e-4
    blurs_px: tuple[int, int] = (5, 15)
    place: float = 0.3
    ring_px: int = 21
    far: float = 0.2
    gain: float = 4.0
    limit: float = 4.0
    blur_px: int = 5
    floor: float = 0.003
    ceiling: float = 0.99
    ignorance: float = 0.3
    doubt: float = 0.3
    # regions
    region_gain: float = 2.0
    pi: float = 0.45
    pu_T: float = 4.0
    pu_shape: float = 1.0
    pu_rounds: int = 4
    motion_weight: float = 2.0
    settle: int = 4
    keep: float = 0.5
    hedge: float = 0.05
    ring_region: int = 31
    cont: float = 0.0
    border: int = 0
    gate: float = 0.0
    exactcont: int = 0


def cue_planes(rgb: ByteArray, blurs_px: tuple[int, int]) -> FloatArray:
    """`[h, w, 10]`: colour, mean colour of two neighbourhoods, texture."""
    colour = rgb.astype(np.float32)
    colour *= np.float32(1 / 255)
    near, wide = (cv2.blur(colour, (side, side)) for side in blurs_px)
    grey = cv2.cvtColor(colour, cv2.COLOR_RGB2GRAY)
    texture = cv2.blur(cv2.absdiff(grey, cv2.blur(grey, (3, 3))), (5, 5)) * np.float32(4)
    return np.concatenate([colour, near, wide, texture.reshape(*grey.shape, 1)], axis=2)


class PixelModel:
    def __init__(self, cues, towards, against, *, hidden, ridge, raw=0):
        """cues [n, c]; weights [n]."""
        mean, spread = cues.mean(axis=0), cues.std(axis=0) + np.float32(1e-3)
        if raw:
            mean[-raw:], spread[-raw:] = 0, 1
        weights, offsets = _projection(cues.shape[1], hidden)
        self.w = weights / spread[:, None]
        self.b = offsets - mean @ self.w
        self.fit(cues, towards, against, ridge)

    def features(self, cues):
        z = cues @ self.w
        z += self.b
        return np.maximum(z, 0, out=z)

    def fit(self, cues, towards, against, ridge):
        t, a = towards / max(float(towards.sum()), 1e-6), against / max(float(against.sum()), 1e-6)
        w = (t + a).astype(np.float32)
        y = ((t - a) / (w + 1e-12)).astype(np.float32)
        f = self.features(cues)
        f = np.concatenate([f, np.ones((len(f), 1), np.float32)], axis=1)
        fw = f * w[:, None]
        A = fw.T @ f
        A[np.diag_indices(len(A))] += ridge * np.trace(A) / len(A)
        self.beta = np.linalg.solve(A, fw.T @ y).astype(np.float32)
        return f

    def __call__(self, cues):
        return self.features(cues) @ self.beta[:-1] + self.beta[-1]


@lru_cache(maxsize=8)
def _projection(cues, hidden, seed=None):
    seed = SEED if seed is None else seed
    rng = np.random.default_rng(seed)
    return (
        (rng.normal(size=(cues, hidden)) / np.sqrt(cues)).astype(np.float32),
        rng.uniform(-1.5, 1.5, hidden).astype(np.float32),
    )


def object_frame(p):
    h, w = p.shape
    c, r = p.sum(axis=0), p.sum(axis=1)
    s = float(c.sum())
    if s < 1:
        return None
    X, Y = np.arange(w, dtype=np.float32), np.arange(h, dtype=np.float32)
    cx, cy = float(c @ X) / s, float(r @ Y) / s
    return cx, cy, float(np.sqrt(c @ (X - cx) ** 2 / s + 1)), float(np.sqrt(r @ (Y - cy) ** 2 / s + 1))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def logit(p):
    return np.log(p / (1 - p))


class RegionTracker:
    def __init__(self, settings=None):
        self.s = settings or Anchoring()
        self.p = None

    def cues(self, rgb, box, frame):
        s = self.s
        y0, y1, x0, x1 = box
        h, w = rgb.shape[:2]
        m = s.blurs_px[1] // 2 + 1
        a0, a1, b0, b1 = max(0, y0 - m), min(h, y1 + m), max(0, x0 - m), min(w, x1 + m)
        pl = cue_planes(rgb[a0:a1, b0:b1], s.blurs_px)[y0 - a0 : y1 - a0, x0 - b0 : x1 - b0]
        out = np.empty((y1 - y0, x1 - x0, 12), np.float32)
        out[..., :10] = pl
        cx, cy, sx, sy = frame
        out[..., 10] = np.clip((np.arange(x0, x1, dtype=np.float32) - cx) / sx, -3, 3) * s.place
        out[..., 11] = (np.clip((np.arange(y0, y1, dtype=np.float32) - cy) / sy, -3, 3) * s.place)[:, None]
        return out.reshape(-1, 12)

    def learn(self, rgb, mask):
        s = self.s
        h, w = mask.shape
        self.frame = object_frame(mask)
        if self.frame is None:
            self.model = None
            return
        X = self.cues(rgb, (0, h, 0, w), self.frame)
        ring = s.ring_px if self.exact else s.ring_region
        near = cv2.blur((mask > 0.1).astype(np.float32), (ring, ring)) > 0
        m = mask.ravel()
        nn = near.ravel()
        tow = np.where(m > 0.1, m, 0) if not self.exact else np.where(m > 0.9, 1.0, 0.0)
        ag = 1 - m if not self.exact else np.where(m < 0.1, 1.0, 0.0)
        an, af = ag * nn, ag * ~nn
        ag = (1 - s.far) * an / max(an.sum(), 1e-6) + s.far * af / max(af.sum(), 1e-6)
        # thin out
        pick = np.zeros((h, w), bool)
        stride = max(1, round(np.sqrt(near.sum() / 6000)))
        pick[::stride, ::stride] = near[::stride, ::stride]
        pick[::4, ::4] |= ~near[::4, ::4]
        pick = pick.ravel()
        # hidden means over thinned
        an, af = an * pick, af * pick
        ag = (1 - s.far) * an / max(an.sum(), 1e-6) + s.far * af / max(af.sum(), 1e-6)
        I = np.flatnonzero(pick)
        self.model = PixelModel(X[I], tow[I], ag[I], hidden=s.hidden, ridge=s.ridge, raw=2)

    def start(self, rgb, mask, *, exact):
        self.exact = exact
        self.age = 0
        self.s_gain = self.s.gain if exact else self.s.region_gain
        mask = mask.astype(np.float32)
        if not exact:
            self.region_prior = self._region_prior(mask)
            mask = self.figure(rgb, self.region_prior, mask)
        self.p = mask
        self.learn(rgb, mask)
        return self.out()

    def _region_prior(self, b):
        fr = object_frame(b)
        if fr is None:
            return b * 0
        cx, cy, sx, sy = fr
        h, w = b.shape
        q = 1 / np.sqrt(3.0)  # a uniform box's spread to its half side
        r2 = ((np.arange(w, dtype=np.float32) - cx) / (sx / q)) ** 2 + (((np.arange(h, dtype=np.float32) - cy) / (sy / q)) ** 2)[:, None]
        g = sigmoid(self.s.pu_shape * 2 * (0.8 - r2)) * b
        g = g * self.s.pi / max(float(g.sum() / max(b.sum(), 1e-6)), 1e-3)
        return np.clip(g, 0.0, 0.95).astype(np.float32)

    def figure(self, rgb, prior, box, motion=None):
        s = self.s
        h, w = prior.shape
        inside = box > 0.5
        if not inside.any() or inside.all():
            return box
        X = cue_planes(rgb, s.blurs_px).reshape(-1, 10)[:, [0, 1, 2, 9]]
        ring = cv2.blur(inside.astype(np.float32), (31, 31)) > 0
        near, far = ring & ~inside, ~ring
        stride = 1
        pick = ring.copy()
        pick[::4, ::4] |= far[::4, ::4]
        I = np.flatnonzero(pick.ravel())
        Xi = X[I]
        ins, nea, fa = inside.ravel()[I], near.ravel()[I], far.ravel()[I]
        pr = np.clip(prior, 0.02, 0.98)
        base = logit(pr)
        if motion is not None:
            base = base + s.motion_weight * motion
        pr = (sigmoid(base) * inside).ravel()[I].astype(np.float32)
        P = pr
        model = None
        for _ in range(s.pu_rounds):
            ag = np.where(ins, 1 - P, nea * 1.0)
            ag = 0.8 * ag / max(ag.sum(), 1e-6) + 0.2 * fa / max(fa.sum(), 1)
            if model is None:
                model = PixelModel(Xi, P, ag, hidden=64, ridge=1e-3)
            else:
                model.fit(Xi, P, ag, 1e-3)
            g = np.zeros(h * w, np.float32)
            g[I] = model(Xi)
            g = cv2.blur(g.reshape(h, w), (5, 5))
            full = sigmoid(base + s.pu_T * np.clip(g, -1.5, 1.5)) * inside
            P = full.ravel()[I].astype(np.float32)
        return full.astype(np.float32)

    def motion_cue(self, flow, inside, shape):
        off = flow.offset_px
        d = off - camera_flow(off, flow.confidence)
        sp = cv2.resize(cv2.blur(np.hypot(d[..., 0], d[..., 1]), (3, 3)), (shape[1], shape[0]))
        o = sp[~inside]
        if not len(o):
            return np.zeros(shape, np.float32)
        sc = np.quantile(o, 0.9) + 0.08
        return np.clip((sp - np.median(o)) / sc, 0, 2) - 0.5

    def step(self, rgb, flow):
        s = self.s
        self.age += 1
        if flow is None or self.model is None:
            return self.out()
        h, w = self.p.shape
        mp = source_map(resize_offsets(flow.offset_px, (h, w)))
        bm = cv2.BORDER_CONSTANT if s.border else cv2.BORDER_REPLICATE
        p = cv2.remap(self.p, mp, None, cv2.INTER_LINEAR, borderMode=bm)
        frame = object_frame(p)
        if frame is None:
            self.p = p * 0
            return self.out()
        self.frame = frame
        p = cv2.GaussianBlur(p, (s.blur_px, s.blur_px), 0)
        if s.doubt:
            u = np.minimum(cv2.resize(flow.residual, (w, h)) * np.float32(s.doubt), 0.9)
            p = p + (s.ignorance - p) * u * (cv2.blur(p, (31, 31)) > 0.02)
        ya = np.flatnonzero(p.max(axis=1) > 0.015)
        xa = np.flatnonzero(p.max(axis=0) > 0.015)
        new = np.zeros((h, w), np.float32)
        if len(ya) and len(xa):
            y0, y1, x0, x1 = max(0, ya[0] - 2), min(h, ya[-1] + 3), max(0, xa[0] - 2), min(w, xa[-1] + 3)
            g = self.model(self.cues(rgb, (y0, y1, x0, x1), frame)).reshape(y1 - y0, x1 - x0) * self.s_gain
            e = np.clip(g, -s.limit, s.limit)
            z = logit(np.clip(p[y0:y1, x0:x1], s.floor, s.ceiling)) + e
            new[y0:y1, x0:x1] = sigmoid(z)
        if not self.exact or s.exactcont:
            if self.age <= s.settle:
                self.region_prior = cv2.remap(self.region_prior, mp, None, cv2.INTER_LINEAR)
                box = (cv2.GaussianBlur(self.region_prior,(5,5),0) > 0.02)
                mot = self.motion_cue(flow, box, (h, w))
                pr = s.keep * new + (1 - s.keep) * self.region_prior
                new = self.figure(rgb, pr, box.astype(np.float32), mot)
                self.p = new
                self.learn(rgb, new)
            elif s.cont:
                ins = new > 0.3
                mot = self.motion_cue(flow, ins, (h, w))
                k = s.cont
                if s.gate:
                    mean = float((new * mot).sum() / max(new.sum(), 1e-6))
                    k *= min(max(s.gate * mean, 0.0), 1.0)
                new = sigmoid(logit(np.clip(new, 0.003, 0.997)) + k * mot)*(new>.01)
        self.p = new.astype(np.float32)
        return self.out()

    def out(self):
        if self.exact or not self.s.hedge:
            return self.p
        w = cv2.GaussianBlur(cv2.resize(self.p, (self.p.shape[1] // 4, self.p.shape[0] // 4), interpolation=cv2.INTER_AREA), (0, 0), 3, borderType=cv2.BORDER_CONSTANT)
        w2 = cv2.GaussianBlur(w, (0, 0), 8, borderType=cv2.BORDER_CONSTANT)
        w = cv2.resize(w + 0.5 * w2, self.p.shape[::-1])
        return np.minimum(self.p + self.s.hedge * w, 1)
