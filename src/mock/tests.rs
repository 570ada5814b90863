//! Drives real engines over raw TCP: free ports, no timed assertions. Where something has to be
//! observed that happens on its own, [`client::eventually`] waits for it.

mod cancel;
mod chat;
mod client;
mod control;
mod faults;
mod pd;
mod publish;
