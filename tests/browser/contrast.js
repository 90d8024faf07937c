// SPDX-License-Identifier: Apache-2.0
// The contrast of text against what is behind it (WCAG 2.2, 1.4.3), as the browser has worked out its colours. Colours
// are painted on one pixel, so that whatever way of writing them the style sheet chose is understood.
(selectors) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const toRgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([red, green, blue, alpha], below) =>
    [red, green, blue].map((value, index) => value * alpha + below[index] * (1 - alpha));
  const behind = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) layers.push(toRgba(getComputedStyle(one).backgroundColor));
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reverse().reduce((below, layer) => over(layer, below), isDark ? [18, 18, 18] : [255, 255, 255]);
  };
  const opacity = (node) => {
    let all = 1;
    for (let one = node; one; one = one.parentElement) all *= Number(getComputedStyle(one).opacity);
    return all;
  };
  const light = (rgb) => {
    const [red, green, blue] = rgb.map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const measure = (node) => {
    const below = behind(node);
    const [red, green, blue, alpha] = toRgba(getComputedStyle(node).color);
    const [one, other] = [light(over([red, green, blue, alpha * opacity(node)], below)), light(below)];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  };
  const visible = (selector) => [...document.querySelectorAll(selector)].find((node) => node.getClientRects().length > 0);
  return Object.fromEntries(selectors.map((selector) => [selector, visible(selector) ? measure(visible(selector)) : 0]));
}
