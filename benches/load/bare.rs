//! The least that Pingora itself costs: it reads the body, takes the next engine in turn and passes
//! on. This program runs it when it is started again with [`WORD`].

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora::Result;
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

/// The argument that makes this program the proxy; the address and the engines follow.
pub(crate) const WORD: &str = "serve-bare-pingora";

/// Idle connections to engines that are kept, as many as sgl-edge keeps.
const POOL: usize = 1024;

struct Bare {
    engines: Vec<String>,
    next: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    /// Who picks by the body has it read before picking. What was read comes back out of the retry
    /// buffer, which ends at 64 KiB.
    async fn request_filter(&self, session: &mut Session, (): &mut ()) -> Result<bool> {
        session.enable_retry_buffering();
        while session.read_request_body().await?.is_some() {}
        Ok(false)
    }

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.engines.len();
        let peer = HttpPeer::new(self.engines[turn].as_str(), false, String::new());
        Ok(Box::new(peer))
    }
}

/// Serves `listen` until the process ends; `engines` are addresses.
pub(crate) fn run(listen: &str, engines: &[String]) -> ! {
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: POOL,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let proxy = Bare {
        engines: engines.to_vec(),
        next: AtomicUsize::new(0),
    };
    let mut service = http_proxy_service(&server.configuration, proxy);
    service.add_tcp(listen);
    server.add_service(service);
    server.run_forever()
}
