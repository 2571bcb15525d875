// The loss curves: what is drawn follows from `state`; every control changes it and draws again.
"use strict";

charts.curves = (figure, { unit, arms }) => {
  const parts = { "whole run": 0, "without the start": 0.2, "last half": 0.5, "last tenth": 0.9 };
  const axes = { [unit]: "counts", seconds: "seconds", steps: "steps" };
  const state = { split: "validation", against: unit, part: "without the start", logs: new Set() };
  const hidden = new Set();
  const single = new Set();

  const along = (curve) =>
    axes[state.against] === "counts" && !curve.counts
      ? curve.steps.map((step) => step * curve.per_step)
      : curve[axes[state.against]];

  const line = (arm, curve, given) => ({
    type: "scatter",
    mode: "lines",
    x: along(curve),
    y: curve.losses,
    name: charts.plain(arm.label),
    line: { color: arm.color, width: 2.25, dash: arm.dash },
    hovertemplate: "%{y:.4f}",
    ...given,
  });

  const band = (arm, curve) => {
    const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", hovertemplate: undefined };
    return [
      line(arm, { ...curve, losses: curve.low }, edge),
      line(arm, { ...curve, losses: curve.high }, { ...edge, fill: "tonexty", fillcolor: arm.soft }),
    ];
  };

  const traces = (arm) => {
    if (hidden.has(arm.label)) return [];
    const mean = arm[state.split];
    const runs = arm.runs.filter((run) => single.has(`${arm.label} ${run.label}`) && run[state.split]);
    return [
      ...(mean && mean.low ? band(arm, mean) : []),
      ...runs.map((run) =>
        line(arm, run[state.split], {
          name: charts.plain(`${arm.label}, ${run.label}`),
          line: { color: arm.color, width: 1, dash: arm.dash },
        }),
      ),
      ...(mean
        ? [
            line(arm, mean, {
              mode: mean.losses.length > 40 ? "lines" : "lines+markers",
              marker: { symbol: arm.marker, size: 6, color: arm.color },
            }),
          ]
        : []),
    ];
  };

  // Ranges that fit the chosen part of the run; the whole run is left to the chart.
  const ranges = (data) => {
    const ends = data.map((trace) => Math.max(...trace.x));
    const end = Math.max(...ends);
    const start = parts[state.part] * end;
    const isShown = (y) => y !== null && (y > 0 || !state.logs.has("loss"));
    const values = data.flatMap((trace) => trace.y.filter((y, i) => isShown(y) && trace.x[i] >= start));
    if (start === 0 || values.length === 0) return {};
    const scale = (value, name) => (state.logs.has(name) ? Math.log10(value) : value);
    const [low, high] = [Math.min(...values), Math.max(...values)].map((y) => scale(y, "loss"));
    const margin = 0.05 * (high - low) || 0.01 * Math.abs(high) || 0.01;
    const fit = { y: [low - margin, high + margin] };
    if (parts[state.part] >= 0.5 || state.logs.has("horizontal")) {
      fit.x = [scale(start, "horizontal"), scale(end, "horizontal")];
    }
    return fit;
  };

  const build = () => {
    const data = arms.flatMap(traces);
    const { x, y } = ranges(data);
    const kind = (name) => (state.logs.has(name) ? "log" : "linear");
    return {
      data,
      layout: {
        hovermode: single.size ? "closest" : "x unified",
        // The same text keeps a zoom; another one, from another control, starts afresh.
        uirevision: [state.split, state.against, state.part, ...state.logs].join(),
        xaxis: { title: state.against, type: kind("horizontal"), ...(x && { range: x }), hoverformat: ".4s" },
        yaxis: { title: `${state.split} loss`, type: kind("loss"), ...(y && { range: y }), exponentformat: "none" },
      },
    };
  };

  const draw = charts.show(figure, build);
  const controls = figure.querySelector(".controls");
  const set = (key) => (name) => {
    state[key] = name;
    draw();
  };
  const flip = (group) => (name, on) => {
    group[on ? "add" : "delete"](name);
    draw();
  };
  if (arms.some((arm) => arm.training)) {
    charts.choice(controls, "Loss", ["validation", "training"], state.split, set("split"));
  }
  charts.choice(controls, "Against", Object.keys(axes), state.against, set("against"));
  charts.choice(controls, "Part", Object.keys(parts), state.part, set("part"));
  charts.ticks(controls, "Logarithmic", ["loss", "horizontal"], flip(state.logs));
  for (const arm of arms) {
    const names = arm.runs.map((run) => run.label);
    charts.ticks(figure.querySelector(".runs > .box"), arm.label, names, (name, on) =>
      flip(single)(`${arm.label} ${name}`, on),
    );
  }
  figure.querySelectorAll(".legend .key").forEach((key, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "key";
    button.setAttribute("aria-pressed", "true");
    button.append(...key.childNodes);
    key.replaceWith(button);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(on));
      flip(hidden)(arms[index].label, !on);
    });
  });
};
