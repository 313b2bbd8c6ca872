//! The list of cases: one list, from which both the tests and [`cases`] are generated.

mod acquire;
mod announcements;
mod asks;
mod batches;
mod documents;
mod expiry;
mod fleet;
mod foreign;
mod forgetting;
mod handover;
mod holding;
mod late;
mod logs;
mod names;
mod namespace;
mod newcomer;
mod notes;
mod quarantine;
mod revoke;
mod storm;
mod takeover;
mod tokens;
mod values;

use super::Case;
use super::harness::IntoVerdict;

/// Generates one `#[test]` for each case of the [conformance suite](crate::testing).
///
/// Its argument is an async function without arguments that returns a fresh
/// [`StoreFixture`](crate::testing::StoreFixture).
///
/// ```
/// # #[cfg(feature = "memory")]
/// # mod example {
/// # struct Mine(tenure::store::memory::MemoryStore);
/// # impl tenure::testing::StoreFixture for Mine {
/// #     fn store(&self) -> std::sync::Arc<dyn tenure::store::Store> {
/// #         std::sync::Arc::new(self.0.clone())
/// #     }
/// #     fn advance_time(&self, span: std::time::Duration) -> tenure::store::BoxFuture<'_, ()> {
/// #         Box::pin(tokio::time::sleep(span))
/// #     }
/// #     fn inject(
/// #         &self,
/// #         _: tenure::testing::StoreFault,
/// #     ) -> tenure::store::BoxFuture<'_, tenure::testing::FaultInjection> {
/// #         Box::pin(async { tenure::testing::FaultInjection::Unsupported })
/// #     }
/// # }
/// # async fn mine() -> Mine {
/// #     Mine(tenure::store::memory::MemoryStore::default())
/// # }
/// mod my_store {
///     tenure::conformance_tests!(super::mine); // `async fn mine() -> Mine` creates a fixture
/// }
/// # }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::__conformance_cases!([$crate::__conformance_tests] { $make });
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ({ $make:expr } $($group:ident { $($case:ident)+ })+) => {
        $($(
            #[test]
            fn $case() {
                $crate::testing::run_case(stringify!($case), $make);
            }
        )+)+
    };
}

/// Every case. A function of the modules above that is missing here is unused, and does not compile.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ([$($then:tt)+] $with:tt) => {
        $($then)+! { $with
            acquire {
                a_free_lease_is_granted
                a_lease_that_was_never_claimed_is_unknown
                a_refusal_names_the_holder_the_term_and_the_remaining_time
                a_refused_claim_changes_nothing
                a_claim_repeated_with_the_same_nonce_is_the_same_term
                a_repeated_claim_starts_the_ttl_again
                another_nonce_of_the_same_instance_is_refused
                a_claim_whose_term_was_released_is_told_that_it_is_over
                a_claim_whose_term_expired_is_told_that_it_is_over
                naming_an_ended_term_replaces_it_with_a_new_one
                naming_a_term_that_is_not_the_listed_one_replaces_nothing
                a_grant_names_the_term_before_and_how_it_ended
                an_abandoned_claim_is_cleaned_up
                abandoning_a_claim_that_has_no_term_changes_nothing
                leases_do_not_touch_each_other
            }
            holding {
                the_holders_of_many_leases_are_listed_in_order
                a_renewal_lets_the_term_go_on
                a_renewal_starts_the_ttl_again
                a_renewal_with_an_old_token_is_refused
                the_right_token_under_another_holder_is_refused
                the_right_holder_under_a_smaller_token_is_refused
                the_right_holder_under_a_larger_token_is_refused
                the_right_holder_under_a_token_that_differs_in_the_last_digit_is_refused
                a_lease_that_was_never_granted_cannot_be_used
                a_released_lease_is_free_at_once
                how_a_term_ended_is_on_record
                a_release_may_be_repeated
                a_released_term_can_do_nothing_more
                a_publication_can_be_read_by_every_instance
                a_publication_outlives_its_term
            }
            handover {
                a_lease_is_handed_to_the_named_instance_under_a_new_token
                the_sender_of_a_hand_over_can_do_nothing_more
                an_offer_cannot_be_used_before_it_is_taken_up
                only_the_named_instance_can_take_up_an_offer
                an_offer_is_taken_up_by_one_claim_only
                a_taken_up_offer_lasts_for_a_ttl_and_not_for_the_window
                an_offer_that_is_not_taken_up_ends_with_its_window
                the_remaining_time_of_an_offer_is_its_window
                a_receiver_may_decline
                a_repeated_hand_over_changes_nothing
                a_lease_can_be_handed_on_and_on
            }
            late {
                nothing_of_a_released_term_touches_the_next_holder
                nothing_of_an_expired_term_touches_the_next_holder
                nothing_of_a_released_term_touches_the_next_one_of_the_same_holder
                nothing_of_a_handed_over_term_touches_the_receiver
                nothing_of_a_taken_over_term_touches_its_taker
                a_late_claim_of_a_released_term_does_not_revive_it
                a_late_take_over_does_not_revive_its_own_term
                a_late_release_leaves_a_free_lease_free
                a_late_acceptance_does_not_revive_a_declined_offer
                a_claim_of_an_older_generation_is_not_granted
            }
            expiry {
                a_lease_is_free_once_its_ttl_has_passed
                an_expired_term_can_do_nothing_more
                a_renewed_lease_outlives_its_first_ttl
                the_remaining_time_of_a_lease_only_shrinks
                a_lease_with_little_left_is_still_held
                one_expiring_lease_does_not_end_another
                a_clock_set_back_keeps_no_lease_for_ever
                a_clock_set_back_adds_no_wait
                a_clock_set_ahead_ends_leases_and_breaks_nothing
            }
            foreign {
                a_foreign_lease_is_respected
                a_foreign_lease_ends_with_its_ttl
                a_foreign_lease_without_a_ttl_is_reported_as_stuck
                the_remaining_time_of_a_foreign_lease_is_its_own_ttl
                any_foreign_holder_name_can_be_shown
                a_foreign_lease_is_not_taken_over
                a_foreign_lease_cannot_be_revoked
                a_term_whose_lease_was_deleted_is_missing
                a_deleted_lease_is_granted_with_a_larger_token
                a_term_whose_lease_was_overwritten_is_taken
                a_lease_in_our_name_without_a_term_is_not_ours
                a_released_term_is_not_revived_by_its_name_in_the_lease
            }
            tokens {
                tokens_grow_with_every_way_a_term_can_end
                tokens_grow_with_every_term_even_within_a_microsecond
                a_token_is_at_least_the_stores_clock
                a_clients_high_water_raises_the_floor_for_every_instance
                a_handed_over_lease_has_a_token_above_the_floor
                the_floor_is_never_lowered
                large_tokens_are_exact_to_the_last_one
                without_a_larger_token_nothing_is_handed_over
                a_corrupt_token_blocks_only_its_own_lease
                forgetting_a_corrupt_token_keeps_the_floor
                tokens_grow_across_a_flush
                tokens_grow_across_a_flush_that_no_instance_remembers
                tokens_grow_across_a_flush_with_the_clock_set_back
                tokens_grow_when_the_clock_is_set_back
                tokens_grow_across_a_restart_with_older_data
            }
            namespace {
                reattaching_with_nothing_lost_changes_nothing
                a_cut_connection_loses_nothing
                a_cut_connection_says_that_it_is_closed
                a_connection_that_is_refused_something_is_not_closed
                a_connection_does_not_outlive_a_restart
                a_missing_record_is_replaced_and_begins_a_quarantine
                an_older_generation_than_remembered_is_replaced_and_begins_a_quarantine
                a_newer_generation_is_adopted_and_never_written_over
                a_restart_begins_a_quarantine_and_surviving_leases_stay_renewable
                a_restart_begins_only_one_quarantine
                a_newcomer_notices_a_restart_as_well
                a_durable_store_begins_no_quarantine_after_a_restart
                a_durable_instance_does_not_hide_a_restart_from_the_others
                even_a_durable_store_is_quarantined_when_its_record_is_missing
                even_a_durable_store_is_quarantined_when_tokens_went_back
                bootstrap_does_not_skip_the_quarantine_of_a_remembered_namespace
                replaced_data_is_not_the_data_that_was_attached
                even_a_durable_store_is_quarantined_when_its_data_was_replaced
                a_forgotten_token_begins_a_quarantine
                a_new_generation_is_announced
                a_restored_backup_is_as_good_as_a_loss
                a_generation_carries_the_stamp_of_its_minter
                two_generations_with_one_number_are_told_apart
            }
            newcomer {
                a_newcomer_alone_on_an_old_server_starts_at_once
                bootstrap_opens_a_new_namespace_however_young_the_server
                bootstrap_changes_nothing_about_a_namespace_that_exists
                a_newcomer_begins_a_quarantine_when_others_are_subscribed
                bootstrap_does_not_skip_the_quarantine_for_subscribers
                a_newcomer_begins_a_quarantine_when_the_record_was_erased
                bootstrap_ends_the_quarantine_of_a_young_server
                subscribers_begin_no_quarantine_once_there_is_a_record
                a_newcomer_begins_a_quarantine_on_a_young_server
                the_uptime_of_a_young_server_shortens_its_quarantine
                the_quarantine_of_a_newcomer_ends
                a_newcomer_finds_what_others_have_written
                a_newcomers_generation_is_above_what_others_remember
            }
            quarantine {
                a_quarantine_ends_after_the_longest_ttl
                the_remaining_time_of_a_quarantine_only_shrinks
                reattaching_does_not_extend_a_quarantine
                a_clock_set_back_does_not_extend_a_quarantine_beyond_the_longest_ttl
                attaching_after_a_clock_was_set_back_does_not_extend_a_quarantine
                a_clock_set_back_begins_no_quarantine
                every_reply_about_a_lease_carries_the_longest_ttl
                nothing_is_granted_during_a_quarantine
                a_missing_record_grants_nothing_until_an_instance_attaches
                a_generation_minted_by_another_requires_a_reattach
                attaching_does_not_raise_the_longest_ttl
                a_longer_ttl_of_a_claim_raises_the_longest
                a_longer_ttl_of_a_renewal_raises_the_longest
                a_longer_ttl_for_an_offer_raises_the_longest
                another_longest_ttl_is_announced
                a_released_lease_is_no_longer_relied_on
                a_released_lease_does_not_extend_the_quarantine_after_a_restart
                a_lease_that_was_handed_over_is_no_longer_relied_on_by_its_sender
                a_claim_repeated_counts_once
                a_term_replaced_by_its_own_process_counts_once
                an_expired_lease_is_no_longer_relied_on
                an_expired_lease_is_not_waited_for_after_a_restart
                every_ttl_counts_and_none_is_left_behind
                a_waiter_does_not_shorten_a_lease
                an_instance_that_remembers_longer_leases_extends_a_quarantine
                an_instance_that_assumes_longer_leases_does_not_extend_a_quarantine
                an_instance_that_remembers_corrects_what_a_newcomer_assumed
                the_longest_assumed_ttl_counts
                a_remembered_longest_ttl_survives_a_loss
                a_quarantine_is_remembered_while_it_lasts
                a_quarantine_says_why
                an_operator_ends_a_quarantine
                an_operators_word_holds_for_instances_that_attach_later
                an_observer_leaves_no_trace
            }
            takeover {
                a_holder_without_progress_is_taken_over
                a_taken_over_holder_is_told_that_it_stalled
                a_repeated_take_over_is_the_same_term_with_the_remaining_wait
                a_holder_that_made_progress_is_not_taken_over
                a_renewal_alone_is_not_progress
                a_holder_that_has_not_renewed_yet_is_not_taken_over
                a_new_holder_is_not_taken_over_for_its_predecessor
                a_waiting_taker_is_not_taken_over
                a_take_over_of_a_free_lease_is_an_ordinary_grant
                the_wait_for_a_taken_over_holder_outlives_a_taker_that_releases
                the_wait_for_a_taken_over_holder_outlives_a_taker_that_expires
                the_wait_for_a_taken_over_holder_outlives_a_taker_that_hands_over
                the_wait_for_a_taken_over_holder_outlives_a_taker_that_is_taken_over
            }
            revoke {
                a_revoked_holder_is_told_so
                a_revoked_lease_stays_held_until_its_holder_releases_it
                a_revoked_lease_is_free_after_its_ttl
                a_revoked_claim_does_not_go_on
                a_revoked_term_may_be_replaced_by_the_process_that_ended_it
                a_repeated_revocation_changes_nothing
                a_revoked_lease_cannot_be_used_under_any_token_on_record
                a_late_revocation_does_not_end_the_next_term
                a_free_lease_cannot_be_revoked
            }
            asks {
                a_holder_learns_what_is_asked_of_it_when_it_renews
                asking_does_not_end_a_term
                what_was_asked_of_one_term_is_not_asked_of_the_next
                only_the_current_term_can_be_asked
                a_revoked_term_is_not_asked_for_more
            }
            announcements {
                a_release_is_announced
                an_abandoned_claim_is_announced_as_released
                a_hand_over_is_announced
                a_revocation_is_announced
                a_request_to_the_holder_is_announced
                a_publication_is_announced
                the_first_heartbeat_is_announced_and_the_next_ones_are_not
                a_leave_is_announced
                a_changed_index_is_announced
                an_entry_of_a_watched_log_is_announced
                a_refused_request_is_not_announced
                every_subscriber_receives_every_announcement_in_order
                every_kind_of_announcement_arrives_as_it_was_sent
                nothing_is_lost_when_a_subscriber_stops_waiting
                a_subscriber_learns_that_the_server_was_restarted
                a_subscriber_learns_that_its_connection_was_cut
            }
            fleet {
                no_instance_is_alive_at_first
                an_instance_with_a_heartbeat_is_alive
                a_later_heartbeat_replaces_the_earlier_one
                an_instance_without_heartbeats_is_gone_after_its_ttl
                an_instance_that_goes_on_sending_heartbeats_stays_alive
                an_instance_that_leaves_is_gone_at_once
                instances_and_leases_are_independent
                groups_are_independent
                joining_and_leaving_a_group_is_announced
                a_heartbeat_may_travel_with_any_lease_request
                a_large_fleet_is_listed_completely
                an_index_lists_what_was_added_and_not_removed
                indexes_do_not_touch_each_other
                a_flush_forgets_instances_and_indexes
            }
            batches {
                an_empty_batch_has_no_outcomes
                each_request_of_a_batch_has_its_own_outcome_in_the_same_order
                a_refused_request_does_not_touch_the_rest_of_its_batch
                a_claim_twice_in_one_batch_is_one_term
                rival_claims_in_one_batch_have_one_winner
                a_large_batch_is_answered_completely_and_in_order
                batches_at_the_same_time_keep_their_answers_apart
            }
            names {
                hostile_names_are_held_independently
                hostile_names_survive_every_kind_of_request
                hostile_instance_ids_are_kept_apart
                a_hostile_receiver_can_take_up_its_offer
            }
            values {
                any_value_is_read_as_it_was_published
                a_mebibyte_is_read_as_it_was_published
                any_record_name_names_a_record_of_its_own
                a_record_belongs_to_its_lease_alone
                a_record_named_like_tenures_own_data_harms_nothing
                any_heartbeat_record_is_listed_as_it_was_sent
                any_index_entry_is_an_entry_of_its_own
                any_index_name_names_an_index_of_its_own
            }
            logs {
                a_log_keeps_its_latest_entries_in_order
                an_attempt_adds_one_entry_and_another_attempt_another
                an_ended_term_appends_nothing
                a_record_is_written_with_an_entry_or_neither_is
            }
            documents {
                a_document_is_made_changed_listed_and_deleted
                a_document_changes_only_if_its_writer_knows_its_value
                a_document_may_be_written_again_with_the_same_value
                a_change_of_a_document_is_announced
                collections_do_not_mix
            }
            forgetting {
                a_forgotten_lease_leaves_only_its_token_behind
                a_lease_in_use_is_not_forgotten
                a_deleted_document_is_listed_as_deleted
            }
            notes {
                notes_are_listed_as_they_were_written_the_latest_last
                only_the_latest_notes_are_listed
                the_number_of_notes_is_bounded
            }
            storm {
                of_two_hundred_claims_on_one_lease_one_wins_every_round
                of_two_hundred_claims_on_twenty_leases_one_wins_each
                one_claim_sent_two_hundred_times_at_once_is_one_term
                an_offer_in_a_storm_is_taken_up_once
                a_storm_of_grants_and_releases_has_one_holder_at_a_time_and_no_repeated_token
                twenty_concurrent_attaches_after_a_loss_agree_on_one_generation
            }
        }
    };
}

macro_rules! list {
    ({} $($group:ident { $($case:ident)+ })+) => {
        vec![$($(
            Case::new(stringify!($group), stringify!($case), |harness| {
                Box::pin(async move { $group::$case(harness).await.into_verdict() })
            }),
        )+)+]
    };
}

/// Every case, in the order of the list.
///
/// ```
/// use tenure::testing::cases;
///
/// for case in cases().iter().filter(|case| case.group() == "handover") {
///     println!("{}", case.name());
/// }
/// assert!(cases().iter().any(|case| case.name() == "a_free_lease_is_granted"));
/// ```
pub fn cases() -> Vec<Case> {
    crate::__conformance_cases!([list] {})
}
