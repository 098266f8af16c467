// A line of the rates of some minutes.

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 36;

export function spark(rates, most, label) {
  const drawing = document.createElementNS(SPACE, "svg");
  drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", label);
  const top = Math.max(...rates, 1);
  const points = rates.map((rate, index) => {
    const x = WIDTH - (rates.length - 1 - index) * (WIDTH / (most - 1));
    return `${x.toFixed(1)},${(HEIGHT - 2 - (rate / top) * (HEIGHT - 4)).toFixed(1)}`;
  });
  const line = document.createElementNS(SPACE, "polyline");
  line.setAttribute("points", points.join(" "));
  line.setAttribute("vector-effect", "non-scaling-stroke");
  drawing.append(line);
  return drawing;
}
