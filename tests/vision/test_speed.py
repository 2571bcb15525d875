"""What the input of images costs, measured by the benchmark's own parts."""

import statistics

import vision_speed


def test_the_input_takes_at_most_a_twentieth_of_a_step(tmp_path):
    # A narrow network: the input of a wider one is a smaller part.
    data = vision_speed.random_images(tmp_path / "images", count=512)
    built = vision_speed.built_run(data, width=8, batch_size=64, channels_last=None)
    make, step = vision_speed.input_only(built), vision_speed.trainer_step(built)
    make(), step()
    rounds = [(vision_speed.seconds_of(make), vision_speed.seconds_of(step)) for _ in range(7)]
    assert statistics.median(ours / whole for ours, whole in rounds) <= 0.05
