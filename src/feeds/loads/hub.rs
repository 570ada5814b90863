//! One reader for all load sockets of a fleet, on a thread of its own.
//!
//! A thousand sockets with a small message every 50 ms each: a task per socket, and a wake-up per
//! message, cost more than reading it. Here the thread pauses for two milliseconds after each look and
//! then reads every socket that has something, into one buffer, decoding in place; nothing is
//! allocated for a message that came whole. Whether a line is silent is looked at once a second for
//! all of them. The hub makes no connection and knows no back-off: it is handed connections, and
//! says how one ended.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Feed, MAX_MESSAGE};
use crate::feeds::zmq::{Connection, ZmqError};
use crate::feeds::zmtp::{Front, front};

/// How long the thread lets messages gather: the price is that much age of a report.
const PAUSE: Duration = Duration::from_millis(2);
/// An idle engine reports once a second; silent for this long, its connection is taken for dead.
pub(super) const SILENCE: Duration = Duration::from_secs(15);
/// From one look for silent lines to the next.
const SWEEP: Duration = Duration::from_secs(1);
/// Bytes taken in one read; a report has about eighty on the wire.
const BUFFER: usize = 16 << 10;
/// Sockets taken in one look.
const EVENTS: usize = 1024;
/// Of the waker; no line has it.
const WAKE: Token = Token(usize::MAX);

/// The running reader; dropping it ends it.
#[derive(Debug)]
pub(super) struct Reader {
    hub: Arc<Hub>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no poller or no thread.
    pub(super) fn start() -> io::Result<Self> {
        let poll = Poll::new()?;
        let hub = Arc::new(Hub {
            registry: poll.registry().try_clone()?,
            lines: Mutex::default(),
        });
        let waker = Waker::new(poll.registry(), WAKE)?;
        let stop = Arc::<AtomicBool>::default();
        let (reads, stopped) = (Arc::clone(&hub), Arc::clone(&stop));
        let work = move || {
            if let Err(error) = reads.run(poll, &stopped) {
                tracing::error!(%error, "load reports are no longer read");
            }
        };
        let thread = std::thread::Builder::new().name("feeds-read".to_owned());
        Ok(Self {
            hub,
            stop,
            waker,
            thread: Some(thread.spawn(work)?),
        })
    }

    /// What it reads.
    pub(super) const fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if self.waker.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // It ends within a pause; a panic in there has been reported by then.
            let _ = thread.join();
        }
    }
}

/// The lines, shared by the thread that reads them and the tasks that connect them.
#[derive(Debug)]
pub(super) struct Hub {
    registry: Registry,
    lines: Mutex<Slab<Line>>,
}

/// One feed, connected or not.
#[derive(Debug)]
struct Line {
    feed: Feed,
    stream: Option<TcpStream>,
    /// Bytes of a message that has not come whole.
    rest: Vec<u8>,
    heard: Instant,
    /// Whoever connected the line waits for its end.
    over: Option<oneshot::Sender<ZmqError>>,
}

impl Hub {
    /// A line for `feed`, not connected yet.
    pub(super) fn add(&self, feed: Feed) -> usize {
        self.lines.lock().insert(Line {
            feed,
            stream: None,
            rest: Vec::new(),
            heard: Instant::now(),
            over: None,
        })
    }

    /// Ends a line: nothing more is reported from it.
    pub(super) fn remove(&self, key: usize) {
        self.lines.lock().try_remove(key);
    }

    /// Reads `connection` for the line from now on. The answer comes when the connection ends; it
    /// is dropped with the line.
    ///
    /// # Errors
    /// The system refuses to watch the connection.
    pub(super) fn attach(
        &self,
        key: usize,
        connection: Connection,
    ) -> Result<oneshot::Receiver<ZmqError>, ZmqError> {
        let (stream, early) = connection.into_parts()?;
        let mut stream = TcpStream::from_std(stream);
        let (over, end) = oneshot::channel();
        if let Some(line) = self.lines.lock().get_mut(key) {
            self.registry
                .register(&mut stream, Token(key), Interest::READABLE)?;
            line.heard = Instant::now();
            line.rest.clear();
            line.take(&early, line.heard)?;
            line.stream = Some(stream);
            line.over = Some(over);
        }
        Ok(end)
    }

    /// Reads all lines until told to stop.
    fn run(&self, mut poll: Poll, stop: &AtomicBool) -> io::Result<()> {
        let (mut events, mut buffer) = (Events::with_capacity(EVENTS), vec![0; BUFFER]);
        let mut swept = Instant::now();
        while !stop.load(Ordering::Acquire) {
            match poll.poll(&mut events, Some(SWEEP)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                outcome => outcome?,
            }
            let now = Instant::now();
            self.read(&events, &mut buffer, now);
            if now.saturating_duration_since(swept) >= SWEEP {
                swept = now;
                self.end_silent(now);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Reads every line that has something.
    fn read(&self, events: &Events, buffer: &mut [u8], now: Instant) {
        let mut lines = self.lines.lock();
        for event in events {
            if let Some(line) = lines.get_mut(event.token().0)
                && let Err(reason) = line.read(buffer, event.is_read_closed(), now)
            {
                line.end(reason);
            }
        }
    }

    /// Ends the lines on which nothing has come for too long.
    pub(super) fn end_silent(&self, now: Instant) {
        for (_, line) in self.lines.lock().iter_mut() {
            let silent = now.saturating_duration_since(line.heard);
            if line.stream.is_some() && silent >= SILENCE {
                line.end(ZmqError::Silent(SILENCE));
            }
        }
    }
}

impl Line {
    /// Takes what is there. Watching is edge-triggered: a read that does not fill the buffer has
    /// emptied the socket, unless the peer has closed it, which would not be told again.
    fn read(&mut self, buffer: &mut [u8], closed: bool, now: Instant) -> Result<(), ZmqError> {
        loop {
            let Some(stream) = &mut self.stream else {
                return Ok(());
            };
            match stream.read(buffer) {
                Ok(0) => return Err(ZmqError::Closed),
                Ok(read) => {
                    self.take(&buffer[..read], now)?;
                    if read < buffer.len() && !closed {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes bytes; what is not a whole message waits for the rest.
    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<(), ZmqError> {
        self.heard = now;
        if self.rest.is_empty() {
            let taken = self.messages(bytes, now)?;
            self.rest.extend_from_slice(&bytes[taken..]);
        } else {
            let mut all = std::mem::take(&mut self.rest);
            all.extend_from_slice(bytes);
            let taken = self.messages(&all, now)?;
            all.drain(..taken);
            self.rest = all;
        }
        Ok(())
    }

    /// Hands over the whole messages at the front of `bytes`; how many bytes they are.
    fn messages(&self, bytes: &[u8], now: Instant) -> Result<usize, ZmqError> {
        let mut taken = 0;
        while let Some((item, length)) = front(&bytes[taken..], MAX_MESSAGE)? {
            taken += length;
            match item {
                Front::Message(frames) => self.feed.message(&frames, now),
                // A peer that speaks 3.0 sends none; nothing that we could need is in them.
                Front::Command => {}
            }
        }
        Ok(taken)
    }

    fn end(&mut self, reason: ZmqError) {
        // Closing a socket ends its registration.
        self.stream = None;
        self.rest = Vec::new();
        if let Some(over) = self.over.take() {
            // Nobody listens when the feed is being stopped.
            let _ = over.send(reason);
        }
    }
}
