// Whether the page is finished, as far as it says: `window.prerenderReady` is false until then, or absent.
document.readyState === 'complete' && window.prerenderReady !== false
