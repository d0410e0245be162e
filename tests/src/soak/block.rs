//! Whether a liar can keep other nodes waiting although Berth works as designed.

use super::draw::CAPACITY;
use super::liar::{Kind, Liar};
use super::plan::Plan;

/// Returns why nodes of this rollout may have to wait for the liar's node. `None` if all others must be updated without
/// an admin: the liar uses one unit of the capacity, and counts as one failure.
pub(super) fn block(plan: &Plan, liar: &Liar) -> Option<&'static str> {
    let can_move = liar.repertoire.contains(&Kind::Labels);
    if !liar.servers.is_empty() {
        return Some("control plane nodes are updated last, and one at a time");
    }
    if plan.order.is_some_and(|order| !order.spare_first || can_move) {
        return Some("its pool goes first");
    }
    if can_move && !plan.moved_to_the_end().is_empty() {
        return Some("it can use up the spare pool, whose capacity is 1");
    }
    let capacity = plan.fleet.unwrap_or(CAPACITY).min(CAPACITY);
    if plan.cordoned_to_the_end().len() + 1 >= capacity {
        return Some("with the cordoned node, it can use up the capacity");
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::soak::liar::Liars;
    use crate::soak::plan::Order;
    use crate::soak::run::HOSTS;

    #[test]
    fn only_a_shared_order_or_the_last_of_the_capacity_blocks() {
        let mut plan = Plan::quiet(1, 0).with_liar(HOSTS, Liars::All, Some(&BTreeSet::from([Kind::Take])));
        let mut liar = plan.liar.take().unwrap();
        liar.servers = vec![];
        assert_eq!(block(&plan, &liar), None);
        plan.order = Some(Order {
            spare_first: true,
            node: 1,
        });
        assert_eq!(block(&plan, &liar), None);
        liar.repertoire.insert(Kind::Labels);
        assert!(block(&plan, &liar).is_some());
        liar.repertoire.remove(&Kind::Labels);
        plan.order = None;
        plan.cordoned = (vec![3], None);
        assert_eq!(block(&plan, &liar), None);
        plan.fleet = Some(2);
        assert!(block(&plan, &liar).is_some());
        plan.cordoned = (vec![], None);
        assert_eq!(block(&plan, &liar), None);
        liar.servers = vec![1, 2, 3];
        assert!(block(&plan, &liar).is_some());
    }
}
