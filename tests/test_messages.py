"""Messages and exit codes of wrong input, in one table: one line, and no file is written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import av
import numpy as np
import pytest

from tests.conftest import Refused
from tests.media import write_audio, write_video
from tests.scenes import moving_square

PROCESS = "process CLIP --set keyframes.text=none"
ASK = "ask CLIP what? --model tiny --set keyframes.text=none --log=quiet"
STREAM = "stream lavfi:testsrc2=size=128x96:rate=10 --set keyframes.text=none --max-frames 2 --headless"
SERVE = "serve --port 0"
ENDPOINT = "--endpoint http://127.0.0.1:9/v1"

TABLE = [
    # Sources
    ("process missing.mp4", 10, "missing.mp4: no such file; check the path"),
    ("process garbag.mp4", 10, "did you mean garbage.mp4?"),
    ("process /dev/null", 11, "/dev/null: a device or pipe"),
    ("process loop.mp4", 10, "loop.mp4: a broken symbolic link"),
    ("process garbage.mp4", 11, "garbage.mp4: FFmpeg cannot open it"),
    ("process sound.m4a", 12, "sound.m4a: no video, only audio"),
    ("process cover.mp3", 12, "cover.mp3: no video, only a cover picture, audio"),
    ("process empty", 14, "empty: a folder without pictures"),
    (f"{PROCESS} --start 99", 18, "99 s"),
    (f"{PROCESS} --start=1e300", 18, "1e+300 s"),
    (f"{PROCESS} --start=-1", 51, "start -1.0: not a time"),
    (f"{PROCESS} --start=nan", 51, "start nan: not a time"),
    (f"{PROCESS} --end=inf", 51, "end inf: not a time"),
    ("stream no.mp4 --headless", 10, "no.mp4: no such file"),
    ("stream gopher://x/y --headless", 11, "gopher"),
    # Outputs
    (f"{PROCESS} -o CLIP/out.mp4", 21, "CLIP"),
    (f"{ASK} -o same.mp4 --patches same.mp4", 21, "named twice"),
    (f"{STREAM} --output x.avi", 21, "MP4"),
    # Queries and budgets
    (f"{PROCESS} --query '  '", 30, "empty"),
    (f"{PROCESS} --region 900,10,20,20", 31, "outside"),
    (f"{PROCESS} --region 1,2,3", 51, "region '1,2,3' is not four numbers"),
    (f"{PROCESS} --region 1,2,nan,4", 51, "values that are not finite"),
    (f"{PROCESS} --region missing.png@2", 51, "region 'missing.png' is not four numbers"),
    (f"{PROCESS} --example missing.png", 32, "missing.png: no such file"),
    (f"{PROCESS} --gaze missing.csv", 32, "missing.csv: No such file"),
    (f"{PROCESS} --budget 0", 40, "budget '0'"),
    (f"{PROCESS} --budget 0.1", 40, "for a share write 10%"),
    (f"{STREAM} --region 1,2,3000,4", 31, "region"),
    (f"{STREAM} --query ''", 30, "empty"),
    (f"{SERVE} --budget 0", 40, "budget '0'"),
    # Settings and presets
    (f"{PROCESS} --set selection.per_second=-5", 51, "selection.per_second="),
    (f"{PROCESS} --set keyframes.intervall=3", 50, "did you mean 'keyframes.interval'?"),
    (f"{PROCESS} --set keyframes.interval=0", 51, "keyframes.interval=0"),
    (f"{PROCESS} --set video.view=pachtes", 51, "did you mean patches?"),
    (f"{PROCESS} --set video.view=relevence", 51, "did you mean relevance?"),
    (f"{PROCESS} --preset missing.toml", 52, "missing.toml: no such preset"),
    (f"{PROCESS} --preset fast", 52, "fast: no such preset; give a TOML file, or one of "),
    (f"{PROCESS} --nonsense", 2, "--nonsense"),
    (f"{ASK} --set vlm.mode=telepathy", 51, "vlm.mode"),
    (f"{ASK} --set vlm.device=tpu", 51, "vlm.device="),
    (f"{ASK} --set vlm.endpoint=ftp://x", 51, "vlm.endpoint='ftp://x': "),
    (f"{STREAM} --set live.size=big", 51, "live.size='big'"),
    (f"{STREAM} --set live.policy=newest", 51, "latest"),
    (f"{SERVE} --preset nothing", 52, "surveillance"),
    (f"{SERVE} --set no.key=1", 50, "no.key"),
    (f"{SERVE} a b --set live.max_streams=1", 51, "live.max_streams=1"),
    (f"{SERVE} a a --set live.max_streams=1", 51, "live.max_streams=1"),
    # Questions
    ("ask what? CLIP", 51, 'the video comes first, then the question; arr-stream ask CLIP "what?"'),
    (f"{ASK} --every 1 --watch", 51, "choose one"),
    (f"{ASK} --every -1", 51, "above 0"),
    (f"{STREAM} --every 2", 51, "--question"),
    (f"{STREAM} {ENDPOINT}", 51, "--question"),
    (f"{STREAM} --question ' '", 30, "empty"),
    (f"{STREAM} --question x --every 2 --watch", 51, "choose one"),
    (f"{STREAM} --duration 0", 51, "above 0"),
    (f"{SERVE} {ENDPOINT}", 51, "model"),
    # Alerts
    (f"{STREAM} --post http://127.0.0.1:9/", 51, "--when"),
    (f"{STREAM} --when 'relevanz > 1'", 51, "relevance"),
    (f"{STREAM} --query fence --when 'relevance > 0.6 for 2s'", 51, "no word of 'fence' is understood"),
    (f"{STREAM} --query fence --when 'relevance[0] > 0'", 51, "no word of 'fence' is understood"),
    (f"{STREAM} --when 'motion > 0.1' --post ftp://a/b", 51, "cannot be sent"),
    (f"{SERVE} --when 'relevance >'", 51, "relevance"),
    (f"{SERVE} --post ftp://a/b", 51, "cannot be sent"),
    # The server
    (f"{SERVE} --host 192.0.2.1", 72, "cannot assign requested address"),
    (f"{SERVE} --host 'no such host'", 72, "no such host, port"),
    (f"{SERVE} --token short", 51, "at least 8"),
    (f"{SERVE} --token ''", 51, "--token is empty"),
    (f"{SERVE} --allow 10.0.0.*", 51, "--allow"),
    (f"{SERVE} --allow /no/such/folder", 51, "--allow"),
    (f"{SERVE} --allow-host http://x", 51, "--allow-host"),
    ("serve --port 70000", 2, "--port"),
    # Models
    ("vllm-args text", 64, "model_type qwen3_5_text, no vision tower"),
    ("vllm-args blind", 64, "no vision tower"),
    ("vllm-args llava", 64, "model_type llava; the plugin takes qwen3_vl, qwen3_vl_moe"),
    ("vllm-args list", 64, "not a model's configuration"),
    ("vllm-args empty", 64, "no config.json"),
]

CONFIGURATIONS: dict[str, object] = {
    "text": {"model_type": "qwen3_5_text"},
    "blind": {"model_type": "qwen3_vl"},
    "llava": {"model_type": "llava", "vision_config": {}},
    "list": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a valid clip and inputs that cannot be used."""
    folder = tmp_path_factory.mktemp("inputs")
    write_video(folder / "clip.mp4", [frame.rgb for frame in moving_square(20)])
    (folder / "loop.mp4").symlink_to("loop.mp4")
    (folder / "garbage.mp4").write_bytes(b"\x00\x01nonsense" * 99)
    write_audio(folder / "sound.m4a")
    _write_covered(folder / "cover.mp3")
    (folder / "empty").mkdir()
    for name, config in CONFIGURATIONS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("command", "code", "said"), TABLE)
def test_wrong_input_is_named_in_one_line(
    refused: Refused, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, said: str
) -> None:
    monkeypatch.chdir(folder)
    before = set(folder.rglob("*"))
    refused(code, said.replace("CLIP", "clip.mp4"), *shlex.split(command.replace("CLIP", "clip.mp4")))
    assert set(folder.rglob("*")) == before


def _write_covered(path: Path) -> None:
    """Write an MP3 with a cover picture."""
    with av.open(str(path), "w") as container:
        sound = container.add_stream("mp3", rate=44100, layout="mono")
        cover = container.add_stream("png")
        assert isinstance(sound, av.AudioStream) and isinstance(cover, av.VideoStream)
        cover.width = cover.height = 16
        cover.pix_fmt = "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        container.mux(cover.encode())
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
        samples.sample_rate = 44100
        container.mux([*sound.encode(samples), *sound.encode()])
