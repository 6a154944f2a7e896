// A request that is responded to at once. On a busy machine the responses before it may still be on their way to the page, although they
// were given to the browser: when this one has come, they have come too, and what waited for them goes on before the second timer.
(async () => {
  try { await fetch('BARRIER', { cache: 'no-store', credentials: 'omit' }); } catch {}
  for (let turn = 0; turn < 2; turn++) await new Promise(done => setTimeout(done));
})()
