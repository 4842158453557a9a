"""The frame loop on a device: a frame goes up once, and a few hundred numbers come back at its end.

    upload -> glance -> follow -> [cut? keyframe due?] -> choose -> report

Pictures, channels, flow and queries stay on the device; `steps` holds what runs there. Two things come back. One is
a single number, the change of colours, which the host awaits while the device already searches the flow: whether the
scene was cut decides what is carried and whether a keyframe is made of this very frame. The other is the report at the
end: the chosen cells, a score a cell, the queries' best scores, and the mean confidence. That last one the schedule
reads one frame later than on the CPU; every other reason for a keyframe acts on the same frame.

Keyframes come from the same providers as ever: their input is the host's frame and their results go up once. What
the cascade and the strategies by region choose is chosen on the host, from one value a cell and channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.gpu.asking import DeviceAsked, DeviceAsking, DeviceScene, Now, Task, ask_all
from arr_stream.gpu.flow import DeviceFlow
from arr_stream.gpu.graphs import Captured
from arr_stream.gpu.memory import DeviceMemory
from arr_stream.gpu.scoring import Evidence
from arr_stream.gpu.selection import Choice, Seen
from arr_stream.gpu.steps import Chosen, Followed, Glance, Plan, Report, choose, follow, glance, move, remember, written
from arr_stream.gpu.texture import assemble
from arr_stream.gpu.transfer import Download, Upload
from arr_stream.keyframes.base import TextEncoder
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.keyframes.generate import KeyframeProvider
from arr_stream.motion import usual_preset
from arr_stream.motion.flow import FlowInput
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Clock, Pipeline, Stopwatch, _State
from arr_stream.relevance.gaze import GazeSource, splat
from arr_stream.relevance.query import Query
from arr_stream.relevance.query_scorers import Asked
from arr_stream.relevance.realization import Realized, realize_relevance
from arr_stream.texture.array import Texture
from arr_stream.texture.pictures import Pictures
from arr_stream.types import CELL_PX, Frame, Grid

HOST_FLOWS = ("dis", "codec")
"""Flows that are found on the host and sent up; every other one is found on the device."""


class _SeenOnDevice:
    """What the model has by now, for those who make it forget."""

    def __init__(self, grid: Grid, device: torch.device) -> None:
        self._hw, self._device = (grid.rows, grid.columns), device
        self.seen = Seen.nothing(self._hw, device)

    def forget(self) -> None:
        """After a refresh the model's context is rebuilt: everything is new again."""
        self.seen = Seen.nothing(self._hw, self._device)


class DevicePipeline(Pipeline):
    """The state of one stream whose frames are worked on by a torch device; see `pipeline.Pipeline`.

    Args:
        settings, keyframes, queries, gaze, encoder, pca, clock: As for `Pipeline`.
        device: Where frames are worked on.
        graphs: Capture the steps as CUDA graphs; on a CPU there are none.
        fused: Fuse the steps' small kernels first; the first frames of a stream then wait for the compiler.

    Raises:
        BackendUnavailable: A CUDA device was asked for and torch can use none.
    """

    def __init__(
        self,
        settings: Settings,
        keyframes: KeyframeProvider,
        queries: Sequence[Query] = (),
        *,
        gaze: GazeSource | None = None,
        encoder: TextEncoder | None = None,
        pca: Pca | None = None,
        clock: Clock | None = None,
        device: torch.device | str = "cuda",
        graphs: bool = True,
        fused: bool = False,
    ) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable(
                f"the frame loop was to run on {self._device}, but torch finds no NVIDIA GPU that it can use",
                remedy="use --set loop.device=cpu, or install a build of torch with CUDA",
            )
        self._upload, self._change, self._report = Upload(self._device), Download(), Download()
        self._glance = Captured(glance, self._device, enabled=graphs, fused=fused)
        self._follow_step = Captured(follow, self._device, enabled=graphs, fused=fused)
        self._choose = Captured(choose, self._device, enabled=graphs, fused=fused)
        self._flow_reduction = 1
        self._before: Glance | None = None
        self._meant: tuple[object, dict[str, Tensor]] = (None, {})
        super().__init__(settings, keyframes, queries, gaze=gaze, encoder=encoder, pca=pca, clock=clock)

    @property
    def captures(self) -> int:
        """CUDA graphs that are held."""
        return sum(step.captures for step in self._captured)

    @property
    def report_bytes(self) -> int:
        """What came back from the device for the last frame."""
        return self._change.bytes_moved + self._report.bytes_moved

    @property
    def _captured(self) -> tuple[Captured[..., Any], ...]:
        return self._glance, self._follow_step, self._choose

    def adapt(self, *, interval_factor: int, flow_reduction: int) -> None:
        super().adapt(interval_factor=interval_factor, flow_reduction=flow_reduction)
        self._flow_reduction = flow_reduction

    def _asking(self, grid: Grid, before: Any = None) -> Any:
        anchored = self._settings.relevance.anchoring
        return DeviceAsking(self._queries, self.phrases, before, anchored=anchored)

    def _new_state(self, grid: Grid, tokens: int) -> _State:
        for step in self._captured:
            step.forget()
        self._before = None
        return _State(
            grid=grid,
            tokens=tokens,
            # They answer to the same names, with tensors in place of arrays; the figure is part of the memory.
            cache=cast(Any, DeviceMemory(grid, self._device)),
            seen=cast(Any, _SeenOnDevice(grid, self._device)),
            figure=cast(Any, None),
            asking=self._asking(grid),
        )

    def _step(self, frame: Frame) -> PatchSet:
        with torch.no_grad():
            return self._on_device(frame)

    def _on_device(self, frame: Frame) -> PatchSet:
        watch = Stopwatch(self._clock)
        state, size_changed = self._fit(frame)
        memory, held = cast(DeviceMemory, state.cache), cast(_SeenOnDevice, state.seen)
        rgb = self._upload(frame.rgb)
        watch.lap("upload")
        before = self._before
        seen = self._before = self._glance(rgb, before.histogram if before is not None else None, state.grid)
        changed = self._change.start(seen.change[None])
        followed = self._followed(state, before, seen, frame)
        cut = before is not None and float(changed()[0]) > self._settings.keyframes.cut_threshold
        flow, motion, figure = self._carried(state, None if cut else followed, frame, cut=cut)
        watch.lap("flow")
        reason, notices = self._refresh(state, frame, size_changed=size_changed, cut=cut)
        self._understand(state)
        watch.lap("keyframe")
        now = Now(frame, state.grid, memory, self._meanings(state))
        asking = cast(DeviceAsking, state.asking)
        tasks = asking.tasks(now)
        scene = self._scene_of(memory, seen, flow, motion)
        texture = assemble(seen.pictures(rgb, state.grid), seen.visual, motion, memory)
        parts = memory.on_device
        evidence = Evidence(seen.visual, motion, memory.history, figure, parts.text, parts.text_trail)
        chosen, cells_scored = self._chosen(state, scene, evidence, seen.eighth_grey, tasks, texture)
        row = self._report.start(chosen.report)
        memory.history, held.seen = chosen.history, chosen.seen
        asking.take(chosen.keep, now)
        watch.lap("choose")
        report = Report.read(row(), len(tasks), state.grid)
        memory.mean_confidence = report.confidence
        state.last_pts_seconds, state.last_index = frame.pts_seconds, frame.index
        watch.lap("report")
        in_use = memory.keyframe_index
        return PatchSet(
            index=frame.index,
            pts_seconds=frame.pts_seconds,
            grid=state.grid,
            rows=report.cell // state.grid.columns,
            columns=report.cell % state.grid.columns,
            level=report.level,
            score=report.score,
            scorer=report.scorer,
            query=report.query,
            carried=report.carried,
            fresh=report.fresh,
            confidence=report.confidence,
            keyframe=reason is not None,
            refresh_reason=reason,
            keyframe_age=frame.index - in_use if in_use is not None else 0,
            keyframe_index=in_use,
            parts=memory.origins,
            query_scores=report.query_scores,
            cells_scored=cells_scored,
            texture=texture,
            relevance=report.relevance,
            flow=flow,
            latency_ms=watch.milliseconds,
            notices=(*notices, *self._graph_notices()),
        )

    def _followed(self, state: _State, before: Glance | None, seen: Glance, frame: Frame) -> Followed | None:
        """Where everything was on the frame before, if there was one; the host has not yet said whether it was cut."""
        moving, name = cast(DeviceMemory, state.cache).moving, self._settings.motion.flow
        if name not in HOST_FLOWS:
            if before is None:
                return None
            preset = usual_preset("torch", self._settings.motion.preset)
            return self._follow_step(
                before.grey, seen.grey, seen.structure, seen.cues, moving, preset, self._flow_reduction
            )
        previous, state.previous = state.previous, FlowInput(Pictures(frame, state.grid).grey, frame)
        if before is None or previous is None:
            return None
        flow = DeviceFlow.from_numpy(self._estimator.estimate(previous, state.previous), self._device)
        return move(flow, seen.structure, seen.cues, moving)

    def _carried(
        self, state: _State, followed: Followed | None, frame: Frame, *, cut: bool
    ) -> tuple[DeviceFlow | None, Tensor, Tensor]:
        """Bring the memory to this frame; gives the flow, the motion channel and the figure."""
        memory = cast(DeviceMemory, state.cache)
        if cut:
            memory.forget()
            state.seen.forget()
        if followed is not None:
            memory.move(followed.moving)
        if self._gaze is not None:
            points = self._gaze.between(state.last_pts_seconds, frame.pts_seconds)
            bump = splat(points, memory.reduced_hw(8)) if len(points) else None
            memory.look(bump, frame.pts_seconds - state.last_pts_seconds)
        if followed is None:
            motion, figure = (torch.zeros(memory.reduced_hw(factor), device=self._device) for factor in (8, CELL_PX))
            return None, motion, figure
        return followed.flow, followed.motion, followed.figure

    def _meanings(self, state: _State) -> dict[str, Tensor]:
        """What the model said of the phrases, on the device; sent there when it is new."""
        meant = state.meanings
        if self._meant[0] is not meant:
            maps = {} if meant is None else meant.maps
            self._meant = meant, {phrase: self._sent(found) for phrase, found in maps.items()}
        return self._meant[1]

    def _sent(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self._device)

    def _scene_of(self, memory: DeviceMemory, seen: Glance, flow: DeviceFlow | None, motion: Tensor) -> DeviceScene:
        parts, trust = memory.on_device, self._settings.relevance.trust
        trails = memory.keyframe_way, parts.text_trail, parts.embedding_trail
        return DeviceScene(seen.quarter, motion, flow, *trails, trust)

    def _plan(self, state: _State) -> Plan:
        settings = self._settings.selection
        coarse_most = int(settings.context_share * state.tokens) if settings.levels else 0
        return Plan(state.grid, state.tokens, coarse_most, settings.novelty, self._settings.scoring)

    def _chosen(
        self,
        state: _State,
        scene: DeviceScene,
        evidence: Evidence,
        eighth_grey: Tensor,
        tasks: tuple[Task, ...],
        texture: Texture,
    ) -> tuple[Chosen, int]:
        """The cells of this frame, and how many were scored for that."""
        settings, plan = self._settings.selection, self._plan(state)
        known = cast(_SeenOnDevice, state.seen).seen
        if settings.strategy == "topk" and settings.cascade != "on":
            return self._choose(scene, evidence, eighth_grey, tasks, known, plan), state.grid.cells
        asked = ask_all(tasks, scene)
        skip = known.known(eighth_grey).cpu().numpy() if settings.novelty == "skip" else None
        weights, figure = self._settings.scoring, evidence.figure.cpu().numpy()
        realized = realize_relevance(
            texture, state.grid, _on_host(asked), settings, weights, state.tokens, skip, figure
        )
        choice, scorer, score = self._choice(realized, state.grid)
        ending = remember(choice, asked, eighth_grey, evidence, known, plan)
        report = written(choice, ending.fresh, scorer, score, asked, scene)
        return Chosen(report, ending.history, ending.seen, asked.keep), realized.cells_scored

    def _choice(self, realized: Realized, grid: Grid) -> tuple[Choice, Tensor, Tensor]:
        """What was chosen on the host, on the device: cells, reasons and scores."""
        chosen = realized.chosen
        cell = self._sent(chosen.rows.astype(np.int64) * grid.columns + chosen.columns)
        count = torch.tensor(len(chosen), device=self._device)
        choice = Choice(cell, self._sent(chosen.level > 0), self._sent(chosen.score), count)
        return choice, self._sent(realized.scorer), self._sent(realized.score)

    def _graph_notices(self) -> tuple[str, ...]:
        notices = [notice for step in self._captured for notice in step.notices]
        for step in self._captured:
            step.notices.clear()
        return tuple(notices)


def _on_host(asked: DeviceAsked) -> Asked:
    relevance, combined, query, carried = (
        values.cpu().numpy() for values in (asked.relevance, asked.combined, asked.query, asked.carried)
    )
    return Asked(relevance, combined, query.astype(np.int32), carried)
