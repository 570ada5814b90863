use super::*;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    let pairs = pairs.iter();
    pairs
        .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
        .collect()
}

fn ready(address: &str, pod: &str) -> Endpoint {
    Endpoint {
        address: address.to_owned(),
        ready: Some(true),
        terminating: false,
        pod: (!pod.is_empty()).then(|| pod.to_owned()),
    }
}

fn slice(port: Option<u16>, role: &str, endpoints: &[Endpoint]) -> Slice {
    Slice {
        labels: labels(&[("app", "engines"), ("role", role)]),
        port,
        endpoints: endpoints.to_vec(),
    }
}

fn pd() -> Select {
    Select::Pd {
        prefill: labels(&[("app", "engines"), ("role", "prefill")]),
        decode: labels(&[("role", "decode")]),
    }
}

/// `ID URL ROLE` of each engine in slices of the namespace `ns`.
fn found(select: &Select, slices: &[(&str, Slice)]) -> Vec<String> {
    let key = |name: &str| SliceKey {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    };
    let slices = slices
        .iter()
        .map(|(name, slice)| (key(name), slice.clone()))
        .collect();
    let engines = engines(&slices, select, &"m".into());
    assert!(engines.iter().all(|spec| spec.bootstrap_port.is_none()));
    engines
        .iter()
        .map(|spec| format!("{} {} {}", spec.id, spec.url, spec.role))
        .collect()
}

fn plain(slices: &[(&str, Slice)]) -> Vec<String> {
    found(&Select::Plain("app=engines".to_owned()), slices)
}

#[test]
fn a_pod_is_named_by_its_uid_and_anything_else_by_slice_and_address() {
    let endpoints = [ready("10.0.0.1", "uid-1"), ready("10.0.0.2", "")];
    let found = plain(&[("s", slice(Some(31000), "any", &endpoints))]);
    assert_eq!(
        found,
        [
            "ns/s/10.0.0.2:31000 http://10.0.0.2:31000 plain",
            "ns/uid-1 http://10.0.0.1:31000 plain",
        ]
    );
}

#[test]
fn a_port_that_is_not_named_is_30000_and_ipv6_stands_in_brackets() {
    let endpoints = [
        ready("fd00::1", "a"),
        ready("fd00:0::2", ""),
        ready("engine-3", "c"),
    ];
    assert_eq!(
        plain(&[("s", slice(None, "any", &endpoints))]),
        [
            "ns/a http://[fd00::1]:30000 plain",
            "ns/c http://engine-3:30000 plain",
            "ns/s/[fd00::2]:30000 http://[fd00::2]:30000 plain",
        ]
    );
}

#[test]
fn only_what_is_ready_and_stays_serves_and_silence_means_ready() {
    let with = |pod: &str, ready, terminating| Endpoint {
        ready,
        terminating,
        ..self::ready(&format!("10.0.0.{pod}"), pod)
    };
    let endpoints = [
        with("1", None, false),
        with("2", Some(false), false),
        with("3", Some(true), true),
        with("4", Some(true), false),
        with("5", Some(false), true),
    ];
    assert_eq!(
        plain(&[("s", slice(Some(1), "any", &endpoints))]),
        [
            "ns/1 http://10.0.0.1:1 plain",
            "ns/4 http://10.0.0.4:1 plain"
        ]
    );
}

#[test]
fn what_two_slices_list_counts_once() {
    let both = [
        (
            "s1",
            slice(
                Some(1),
                "any",
                &[ready("10.0.0.1", "a"), ready("10.0.0.2", "b")],
            ),
        ),
        (
            "s2",
            slice(
                Some(1),
                "any",
                &[ready("10.0.0.2", "b"), ready("10.0.0.3", "c")],
            ),
        ),
    ];
    let ids = plain(&both);
    assert_eq!(ids.len(), 3, "{ids:?}");
    // Without pods only the address tells that two are one.
    let both = [
        ("s1", slice(Some(1), "any", &[ready("10.0.0.1", "")])),
        ("s2", slice(Some(1), "any", &[ready("10.0.0.1", "")])),
    ];
    assert_eq!(plain(&both), ["ns/s1/10.0.0.1:1 http://10.0.0.1:1 plain"]);
}

#[test]
fn of_a_pod_in_two_families_the_same_address_counts_whichever_slice_comes_first() {
    let six = slice(Some(1), "any", &[ready("fd00::1", "a")]);
    let four = slice(Some(1), "any", &[ready("10.0.0.1", "a")]);
    let first = plain(&[("s1", six.clone()), ("s2", four.clone())]);
    assert_eq!(first, ["ns/a http://10.0.0.1:1 plain"]);
    assert_eq!(plain(&[("s1", four), ("s2", six.clone())]), first);
    assert_eq!(plain(&[("s1", six)]), ["ns/a http://[fd00::1]:1 plain"]);
}

#[test]
fn slices_that_disagree_about_a_pod() {
    let with = |ready, terminating| {
        let endpoint = Endpoint {
            ready,
            terminating,
            ..self::ready("10.0.0.1", "a")
        };
        slice(Some(1), "any", &[endpoint])
    };
    let (up, down, leaving) = (
        with(Some(true), false),
        with(Some(false), false),
        with(Some(false), true),
    );
    assert_eq!(plain(&[("s1", down), ("s2", up.clone())]).len(), 1);
    assert!(plain(&[("s1", up.clone()), ("s2", leaving.clone())]).is_empty());
    assert!(plain(&[("s1", leaving), ("s2", up)]).is_empty());
}

#[test]
fn a_new_pod_at_the_address_of_an_old_one_is_another_engine() {
    let old = plain(&[("s", slice(Some(1), "any", &[ready("10.0.0.1", "a")]))]);
    let new = plain(&[("s", slice(Some(1), "any", &[ready("10.0.0.1", "b")]))]);
    assert_eq!(old, ["ns/a http://10.0.0.1:1 plain"]);
    assert_eq!(new, ["ns/b http://10.0.0.1:1 plain"]);
}

#[test]
fn roles_come_from_the_labels_of_slices_by_equality() {
    let slices = [
        ("p", slice(Some(1), "prefill", &[ready("10.0.0.1", "p")])),
        ("d", slice(Some(1), "decode", &[ready("10.0.0.2", "d")])),
        ("x", slice(Some(1), "Decode", &[ready("10.0.0.3", "x")])),
        (
            "bare",
            Slice {
                labels: Labels::new(),
                ..slice(Some(1), "", &[ready("10.0.0.4", "y")])
            },
        ),
    ];
    assert_eq!(
        found(&pd(), &slices),
        [
            "ns/d http://10.0.0.2:1 decode",
            "ns/p http://10.0.0.1:1 prefill"
        ]
    );
    // A pod behind both Services, whatever the slices are called.
    for names in [["s1", "s2"], ["s2", "s1"]] {
        let both =
            ["prefill", "decode"].map(|role| slice(Some(1), role, &[ready("10.0.0.1", "a")]));
        let [prefill, decode] = both;
        let slices = [(names[0], prefill), (names[1], decode)];
        assert_eq!(found(&pd(), &slices), ["ns/a http://10.0.0.1:1 prefill"]);
    }
}
