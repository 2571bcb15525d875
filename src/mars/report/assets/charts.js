// Interactive charts in place of the static drawings. The data stand in the page as JSON; a colour
// there is the name of a custom property, so that a change between light and dark redraws it.
"use strict";

const charts = (() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const redraws = [];

  // Colours are looked up by the key they stand under: a label may read like one.
  const themed = (value, style, key = "") => {
    if (typeof value === "string") {
      return key.endsWith("color") && value.startsWith("--")
        ? style.getPropertyValue(value).trim()
        : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "number" ? value : value.map((each) => themed(each, style, key));
    }
    if (value === null || typeof value !== "object") return value;
    const entries = Object.entries(value);
    return Object.fromEntries(entries.map(([name, each]) => [name, themed(each, style, name)]));
  };

  const axis = (given) => ({
    gridcolor: "--rule",
    linecolor: "--edge",
    zeroline: false,
    automargin: true,
    ticks: "outside",
    tickcolor: "--rule",
    exponentformat: "SI",
    ...(given.type === "log" && { dtick: "D2" }),
    ...given,
    title: { text: given.title, font: { size: 13 }, standoff: 10 },
  });

  const layout = (given) => ({
    showlegend: false,
    hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif", size: 12, color: "--text" },
    margin: narrow.matches ? { l: 44, r: 8, t: 8, b: 44 } : { l: 60, r: 16, t: 20, b: 48 },
    hoverlabel: { bgcolor: "--surface", bordercolor: "--edge", font: { color: "--text" }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "--muted", activecolor: "--accent" },
    // A finger that scrolls the page must not be caught by a chart.
    dragmode: coarse.matches ? false : "zoom",
    ...given,
    xaxis: axis(given.xaxis),
    yaxis: axis(given.yaxis),
  });

  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: coarse.matches ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    doubleClick: "reset",
  };

  // A chart is live only once it has been drawn: an error leaves the static drawing in place.
  const show = (figure, build) => {
    const plot = figure.querySelector(".plot");
    const draw = () => {
      const style = getComputedStyle(document.documentElement);
      const { data, layout: given } = build();
      return Plotly.react(plot, themed(data, style), themed(layout(given), style), config);
    };
    figure.classList.add("live");
    try {
      draw();
    } catch (error) {
      figure.classList.remove("live");
      throw error;
    }
    redraws.push(draw);
    return draw;
  };

  const field = (title, className) => {
    const set = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = title;
    const box = document.createElement("div");
    box.className = className;
    set.append(legend, box);
    return { set, box };
  };

  const option = (type, name, text, checked) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    const span = document.createElement("span");
    Object.assign(input, { type, name, checked });
    span.textContent = text;
    label.append(input, span);
    return { label, input };
  };

  // One of several: a row of radio buttons.
  const choice = (controls, title, names, chosen, changed) => {
    const { set, box } = field(title, "choice");
    const group = `${controls.closest("figure").id}-${title}`;
    for (const name of names) {
      const { label, input } = option("radio", group, name, name === chosen);
      input.addEventListener("change", () => changed(name));
      box.append(label);
    }
    controls.append(set);
  };

  // Any of several: tick boxes.
  const ticks = (parent, title, names, changed) => {
    const { set, box } = field(title, "box");
    for (const name of names) {
      const { label, input } = option("checkbox", "", name, false);
      label.className = "tick";
      input.addEventListener("change", () => changed(name, input.checked));
      box.append(label);
    }
    parent.append(set);
  };

  // A figure of one or more views, each whole as it stands in the data under the chosen names.
  const views = (figure, { choices, views }) => {
    const chosen = choices.map(([, names]) => names[0]);
    const draw = show(figure, () => views[chosen.join()]);
    choices.forEach(([title, names], index) => {
      choice(figure.querySelector(".controls"), title, names, chosen[index], (name) => {
        chosen[index] = name;
        draw();
      });
    });
  };

  // The charts read some tags in text; what comes from a file has none.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  const read = (id) => JSON.parse(document.getElementById(id).textContent);

  for (const query of [dark, narrow]) {
    query.addEventListener("change", () => redraws.forEach((draw) => draw()));
  }
  return { show, choice, ticks, views, plain, read };
})();
