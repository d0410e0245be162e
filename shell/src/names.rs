//! Lists only the names of objects.

use kube::api::{ListParams, ObjectList, Request};
use kube::{Client, Resource};
use serde::Deserialize;

/// An object with its name alone. Other metadata, such as the times of managed fields, may have values that cannot be
/// decoded.
#[derive(Debug, Clone, Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Debug, Clone, Deserialize)]
struct Name {
    name: Option<String>,
}

/// Lists the names of the objects of a kind in all namespaces. Requests only metadata from the API server.
pub async fn list_names<K: Resource<DynamicType = ()>>(
    client: &Client,
    params: &ListParams,
) -> kube::Result<Vec<String>> {
    let request = Request::new(K::url_path(&(), None)).list_metadata(params);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let list: ObjectList<Named> = client.request(request).await?;
    Ok(list.items.into_iter().filter_map(|item| item.metadata.name).collect())
}
