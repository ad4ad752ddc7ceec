// Charts over time, drawn by uPlot from the data that the server put into the page.
"use strict";
(() => {
  const drawn = new Map();
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds === 0) return "0";
    if (seconds < 1) return `${+(seconds * 1000).toPrecision(2)} ms`;
    if (seconds < 100) return `${+seconds.toPrecision(2)} s`;
    return seconds < 6000 ? `${+(seconds / 60).toPrecision(2)} min` : `${+(seconds / 3600).toPrecision(2)} h`;
  }
  const rate = (value) => (value === null ? "–" : value < 10 ? String(+value.toFixed(1)) : Math.round(value).toLocaleString("en"));


  const kinds = {
    rate: {
      columns: ["succeeded", "failed", "submitted"],
      series: () => [
        { label: "succeeded", stroke: color("--chart-good"), fill: color("--chart-good") + "22", width: 1.5, value: (_, v) => rate(v), points: { show: false } },
        { label: "failed", stroke: color("--chart-bad"), fill: color("--chart-bad") + "aa", width: 1, value: (_, v) => rate(v), points: { show: false } },
        { label: "enqueued", stroke: color("--calm"), width: 1, dash: [4, 3], value: (_, v) => rate(v), points: { show: false } },
      ],
      values: (_, ticks) => ticks.map(rate),
    },
    latency: {
      columns: ["wait_p50", "wait_p95", "run_p50", "run_p95"],
      series: () => [
        { label: "wait p50", stroke: color("--calm"), width: 1, dash: [4, 3], value: (_, v) => duration(v), spanGaps: true, points: { show: false } },
        { label: "wait p95", stroke: color("--calm"), width: 1.5, value: (_, v) => duration(v), spanGaps: true, points: { show: false } },
        { label: "run p50", stroke: color("--busy"), width: 1, dash: [4, 3], value: (_, v) => duration(v), spanGaps: true, points: { show: false } },
        { label: "run p95", stroke: color("--busy"), width: 1.5, value: (_, v) => duration(v), spanGaps: true, points: { show: false } },
      ],
      values: (_, ticks) => ticks.map(duration),
    },
  };

  function draw(element) {
    const kind = kinds[element.dataset.chart];
    const points = JSON.parse(element.dataset.points);
    const data = [points.at, ...kind.columns.map((name) => points[name])];
    const known = drawn.get(element);
    if (known && known.theme === theme()) return known.plot.setData(data);
    known?.plot.destroy();
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      ...size(element),
      padding: [10, 14, 0, 0],
      legend: { markers: { dash: (plot, index) => (plot.series[index].dash ? "dashed" : "solid") } },
      cursor: { drag: { setScale: false, x: false, y: false } },
      series: [{ label: "at", value: (_, at) => (at === null ? "" : uPlot.fmtDate("{MMM} {D}, {HH}:{mm}")(new Date(at * 1000))) }, ...kind.series()],
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis, size: 26, gap: 4, grid: { show: false }, values: [[86400, "{MM}-{DD}", "", "", "", "", "", "", 1], [60, "{HH}:{mm}", "", "", "", "", "", "", 1]] },
        { ...axis, size: 56, gap: 6, values: kind.values },
      ],
    }, data, element);
    drawn.set(element, { plot, theme: theme() });
  }

  const theme = () => color("--page");
  const size = (element) => ({ width: Math.max(200, element.clientWidth), height: element.classList.contains("low") ? 136 : 216 });

  function drawAll() {
    for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
    for (const element of document.querySelectorAll("[data-chart]")) draw(element);
  }
  document.addEventListener("pulsed:refreshed", drawAll);
  document.addEventListener("pulsed:theme", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => { for (const [element, { plot }] of drawn) plot.setSize(size(element)); });
  drawAll();
})();
