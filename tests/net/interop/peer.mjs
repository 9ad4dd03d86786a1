// A js-libp2p peer that speaks to ours. Says its address and what happens as lines of JSON.
// On stdin: "dial ADDRESS BYTES" dials and has so many bytes echoed, "reset ADDRESS" has its stream reset.
import { createHash, randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { yamux } from '@libp2p/yamux'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const ECHO = '/volunteer/echo/1'
const RESET = '/volunteer/reset/1'
const PIECE = 64 * 1024

// js-libp2p 3 counts on this of node 22.
Promise.withResolvers ??= () => {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

const say = (what) => console.log(JSON.stringify(what))
const drained = async (stream) => {
  if (stream.writableNeedsDrain) {
    await new Promise((resolve) => stream.addEventListener('drain', resolve, { once: true }))
  }
}

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  connectionMonitor: { enabled: false },
  services: { ping: ping() }
})

// Gives everything back, and ends its side only once the other has ended its own.
await node.handle(ECHO, async (stream) => {
  let bytes = 0
  try {
    for await (const data of stream) {
      bytes += data.byteLength
      stream.send(data)
      await drained(stream)
    }
    await stream.close()
    say({ echoed: bytes })
  } catch (error) {
    say({ failed: error.name })
  }
})

await node.handle(RESET, async (stream) => {
  for await (const _ of stream) {
    stream.abort(new Error('as asked'))
    return
  }
})

const dial = async (address, size) => {
  const stream = await node.dialProtocol(multiaddr(address), ECHO)
  const sent = createHash('sha256')
  const came = createHash('sha256')
  let bytes = 0
  const reading = (async () => {
    for await (const data of stream) {
      bytes += data.byteLength
      came.update(data.subarray())
    }
  })()
  for (let done = 0; done < size; done += PIECE) {
    const piece = randomBytes(PIECE)
    sent.update(piece)
    stream.send(piece)
    await drained(stream)
  }
  await stream.close() // our half only: the rest of the echo is still on its way
  await reading
  say({ dialled: bytes, same: sent.digest('hex') === came.digest('hex') })
}

const reset = async (address) => {
  const stream = await node.dialProtocol(multiaddr(address), RESET)
  stream.addEventListener('close', (event) => say({ reset: event.error?.name ?? 'no error' }))
  stream.send(new Uint8Array(1))
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const [what, address, size] = line.split(' ')
  const work = what === 'dial' ? dial(address, Number(size)) : reset(address)
  work.catch((error) => say({ failed: error.name, why: error.message }))
}).on('close', () => process.exit())

say({ address: node.getMultiaddrs()[0].toString() })
