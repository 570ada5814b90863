//! From the API's objects to the slices that the router knows.

use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};

use crate::server::kubernetes::{Endpoint, Slice, SliceKey};

/// The name of `object`; an object without one does not exist.
pub(super) fn key(object: &EndpointSlice) -> Option<SliceKey> {
    Some(SliceKey {
        namespace: object.metadata.namespace.clone()?,
        name: object.metadata.name.clone()?,
    })
}

/// What the router reads of `object`.
pub(super) fn slice(object: EndpointSlice) -> Slice {
    let ports = object.ports.unwrap_or_default();
    let port = ports.first().and_then(|port| port.port);
    Slice {
        labels: object.metadata.labels.unwrap_or_default(),
        port: port
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0),
        endpoints: object.endpoints.into_iter().filter_map(endpoint).collect(),
    }
}

/// All addresses of an endpoint mean the same: the first one is taken, as kube-proxy does.
fn endpoint(endpoint: ApiEndpoint) -> Option<Endpoint> {
    let conditions = endpoint.conditions.unwrap_or_default();
    let pod = endpoint
        .target_ref
        .filter(|target| target.kind.as_deref() == Some("Pod"));
    Some(Endpoint {
        address: endpoint.addresses.into_iter().next()?,
        ready: conditions.ready,
        terminating: conditions.terminating.unwrap_or(false),
        pod: pod.and_then(|pod| pod.uid),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> (Option<SliceKey>, Slice) {
        let object: EndpointSlice = serde_json::from_value(value).unwrap();
        (key(&object), slice(object))
    }

    #[test]
    fn an_object_gives_what_it_says() {
        let (key, slice) = read(json!({
            "metadata": {"namespace": "prod", "name": "e-1", "labels": {"app": "engines"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 31000}, {"name": "zmq", "port": 5557}],
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.9"], "targetRef": {"kind": "Pod", "uid": "u1"}},
                {"addresses": ["10.0.0.2"], "targetRef": {"kind": "Node", "uid": "n1"},
                 "conditions": {"ready": false, "terminating": true}},
                {"addresses": []},
            ],
        }));
        let key = key.unwrap();
        assert_eq!((key.namespace.as_str(), key.name.as_str()), ("prod", "e-1"));
        assert_eq!(slice.labels["app"], "engines");
        assert_eq!(slice.port, Some(31000));
        let endpoint = |address: &str, ready, terminating, pod: Option<&str>| Endpoint {
            address: address.to_owned(),
            ready,
            terminating,
            pod: pod.map(str::to_owned),
        };
        let wanted = [
            endpoint("10.0.0.1", None, false, Some("u1")),
            endpoint("10.0.0.2", Some(false), true, None),
        ];
        assert_eq!(slice.endpoints, wanted);
    }

    #[test]
    fn what_is_left_out_is_unknown() {
        let bare = json!({"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": null});
        let (key, slice) = read(bare);
        assert_eq!((key, slice), (None, Slice::default()));
        for port in [
            json!([]),
            json!([{"name": "all"}]),
            json!([{"port": 0}]),
            json!([{"port": 70000}]),
        ] {
            let object =
                json!({"metadata": {}, "addressType": "IPv4", "endpoints": [], "ports": port});
            assert_eq!(read(object).1.port, None);
        }
    }
}
