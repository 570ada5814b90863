//! What an explanation says of them, and that it changes nothing.

use std::sync::Arc;
use std::time::Duration;

use sgl_edge::policies::explain::{Compared, Explanation};
use sgl_edge::policies::{PickRequest, PowerOfTwoPolicy};

use super::{BOTH, Case, Found, first};
use crate::support::engines::plain_engines;
use crate::support::fakes::{FakeAdmission, ScriptedDraw};
use crate::support::picks::now;

#[test]
fn explaining_says_what_a_pick_would_do_and_changes_nothing() {
    let engines = plain_engines(&["a", "b"]);
    for kind in BOTH {
        for (bound, engine, found, asked) in [
            (None, "a", Found::Assigned, true),
            (Some("gone"), "a", Found::Remapped, true),
            (Some("b"), "b", Found::Bound, false),
        ] {
            let fallback = PowerOfTwoPolicy::new(
                Default::default(),
                Arc::default(),
                FakeAdmission::open(),
                ScriptedDraw::new([0, 0]),
            );
            let case = Case::new(kind, Arc::new(fallback), FakeAdmission::open());
            if let Some(engine) = bound {
                case.seed("k", engine);
            }
            let explanation = Explanation::default();
            let request = PickRequest {
                explain: Some(&explanation),
                ..case.request(Some("k"))
            };
            case.assert(now(case.policy.pick(&engines, &request)), engine, found);
            assert_eq!(case.binding("k").as_deref(), bound, "unchanged");
            let Some(Compared::Binding { binding, fallback }) = explanation.take_compared() else {
                panic!("{explanation:?}")
            };
            let live = bound.filter(|id| *id == "b");
            assert_eq!(binding.map(|id| id.to_string()).as_deref(), live);
            assert_eq!(fallback.is_some(), asked);
            let sampled = fallback.and_then(|fallback| fallback.compared);
            assert_eq!(sampled.is_some(), asked);
            assert_eq!(
                case.admission.asked(),
                [engine],
                "the caps of this group alone"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn explaining_is_no_use_of_a_binding() {
    let engines = plain_engines(&["a", "b"]);
    let idle = Duration::from_secs(600);
    for kind in BOTH {
        let case = Case::new(kind, first(), FakeAdmission::open());
        case.seed("k", "b");
        tokio::time::advance(idle).await;
        let explanation = Explanation::default();
        let request = PickRequest {
            explain: Some(&explanation),
            ..case.request(Some("k"))
        };
        case.assert(now(case.policy.pick(&engines, &request)), "b", Found::Bound);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(case.store.sweep_expired(idle), 1);
    }
}
