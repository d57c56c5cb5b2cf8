//! Host names, each looked up once. A look-up for every connection would load the resolver as the run loads its server, and
//! a lost one would stand in the latency as seconds of the server's.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::OnceCell;

type Addresses = Arc<OnceCell<Vec<SocketAddr>>>;

/// What a look-up gave, shared by all connections of this process. A name without an answer is asked for again.
static KNOWN: LazyLock<Names> = LazyLock::new(Names::default);

#[derive(Debug, Default)]
struct Names(Mutex<BTreeMap<String, Addresses>>);

impl Names {
    /// The addresses that a look-up of `name` gave before.
    fn known(&self, name: &str) -> Option<Vec<IpAddr>> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = names.get(name)?.get()?;
        Some(found.iter().map(SocketAddr::ip).collect())
    }

    /// The addresses of `name`; of several askers at once one looks it up, and the others wait for it.
    async fn of<E>(&self, name: &str, look_up: impl Future<Output = Result<Vec<SocketAddr>, E>>) -> Result<Addrs, E> {
        let known = {
            let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(names.entry(name.to_owned()).or_default())
        };
        let found = known.get_or_try_init(|| look_up).await?.clone();
        Ok(Box::new(found.into_iter()))
    }
}

/// What the look-up of the host in `url` gave, in its order; none of an address in digits, or of a name that nobody has
/// asked for yet.
#[must_use]
pub fn resolved(url: &str) -> Option<(String, Vec<IpAddr>)> {
    let url: reqwest::Url = url.parse().ok()?;
    let host = url.host_str()?;
    Some((host.to_owned(), KNOWN.known(host)?))
}

/// The resolver of every pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Once;

impl Resolve for Once {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let look_up = async {
                let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
                Ok::<_, Box<dyn Error + Send + Sync>>(found)
            };
            KNOWN.of(name.as_str(), look_up).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    /// Row B81
    #[tokio::test]
    async fn a_name_is_looked_up_once_however_many_connections_ask() {
        let (names, asked) = (Arc::new(Names::default()), Arc::new(AtomicU32::new(0)));
        let mut connections = JoinSet::new();
        for _ in 0..50 {
            let (names, asked) = (Arc::clone(&names), Arc::clone(&asked));
            connections.spawn(async move {
                let look_up = async {
                    asked.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok::<_, Infallible>(vec![SocketAddr::from(([127, 0, 0, 1], 0))])
                };
                names.of("a.test", look_up).await.unwrap().count()
            });
        }
        assert_eq!(connections.join_all().await, [1; 50]);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert_eq!((names.known("a.test"), names.known("b.test")), (Some(vec![[127, 0, 0, 1].into()]), None));
    }

    #[tokio::test]
    async fn a_look_up_that_failed_is_made_again() {
        let names = Names::default();
        assert!(names.of("a.test", async { Err("no such name yet") }).await.is_err());
        assert_eq!(names.known("a.test"), None);
        let found = names.of("a.test", async { Ok::<_, &str>(vec![SocketAddr::from(([127, 0, 0, 1], 0))]) }).await;
        assert_eq!(found.unwrap().count(), 1);
    }
}
