// Every figure that has data becomes interactive, one after the other: the page answers in between.
"use strict";

(() => {
  const waiting = Array.from(document.querySelectorAll("figure[data-chart]"));
  const next = () => {
    const figure = waiting.shift();
    if (!figure) return;
    setTimeout(next);
    charts[figure.dataset.chart](figure, charts.read(`${figure.id}-data`));
  };
  next();
})();
