"""Events reach all who want them; a slow listener loses the oldest, and is told how many."""

from __future__ import annotations

from arr_stream.live.publishing import EventHub, Subscription


def test_reach_those_who_want_them() -> None:
    hub, woken = EventHub(), []
    everything = Subscription(lambda: woken.append("everything"))
    answers = Subscription(lambda: woken.append("answers"), streams={"s1"}, kinds={"answer"})
    frames = Subscription(lambda: woken.append("frames"), kinds={"frame"})
    for each in (everything, answers, frames):
        hub.subscribe(each)
    assert hub.wanted("frame", "s9") and not EventHub().wanted("frame")
    for event in (
        {"type": "answer", "stream": "s1"},
        {"type": "answer", "stream": "s2"},
        {"type": "frame", "stream": "s1"},
        {"type": "streams"},
    ):
        hub.publish(event)
    assert [event["type"] for event in everything.drain()] == ["answer", "answer", "streams"]
    assert answers.drain() == [{"type": "answer", "stream": "s1"}]
    assert frames.drain() == [{"type": "frame", "stream": "s1"}]
    assert woken == ["everything", "answers", "everything", "frames", "everything"]
    hub.unsubscribe(frames)
    assert not hub.wanted("frame")


def test_a_slow_listener_loses_the_oldest_events_and_is_told_how_many() -> None:
    slow = Subscription(lambda: None, most_waiting=10)
    for number in range(14):
        slow.put({"type": "answer", "number": number})
    missed, *kept = slow.drain()
    assert missed == {"type": "missed", "count": 4}
    assert [event["number"] for event in kept] == list(range(4, 14))
    assert slow.drain() == []
