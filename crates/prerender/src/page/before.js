// Runs in every frame before the page's own scripts. None of this is a wall: those are outside of the browser. It keeps pages from waiting
// for a person, and from what cannot succeed.
(() => {
  const set = (object, name, value) => {
    try { Object.defineProperty(object, name, { value, configurable: true, writable: true }); } catch {}
  };
  set(window, 'alert', () => {});
  set(window, 'confirm', () => false);
  set(window, 'prompt', () => null);
  set(window, 'print', () => {});
  set(window, 'open', () => null);
  for (const name of ['RTCPeerConnection', 'webkitRTCPeerConnection', 'RTCDataChannel', 'WebTransport']) set(window, name, undefined);
  for (const name of ['serviceWorker', 'geolocation', 'mediaDevices', 'usb', 'bluetooth', 'serial', 'hid']) {
    try { Object.defineProperty(Navigator.prototype, name, { get: () => undefined, configurable: true }); } catch {}
  }
})();
