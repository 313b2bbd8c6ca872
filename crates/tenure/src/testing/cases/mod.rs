//! The list of cases: one list, from which the tests and [`cases`] are both made.

mod acquire;
mod announcements;
mod asks;
mod batches;
mod closing;
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
mod revoke;
mod sessions;
mod storm;
mod takeover;
mod tokens;
mod values;

use super::Case;
use super::trial::IntoVerdict;

/// Makes one `#[test]` for each case of the [conformance suite](crate::testing).
///
/// Its argument is an async function without arguments that returns a fresh [`Subject`](crate::testing::Subject).
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

/// Every case. A function in one of the modules above that is missing here is an unused function, and does not build.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ([$($then:tt)+] $with:tt) => {
        $($then)+! { $with
            acquire {
                a_free_lease_is_granted
                a_lease_that_was_never_asked_for_is_unknown
                a_held_lease_is_refused_with_its_holder_its_term_and_what_is_left
                a_refused_claim_changes_nothing
                a_claim_repeated_with_the_same_nonce_is_the_same_term
                a_repeated_claim_starts_the_ttl_again
                another_nonce_of_the_same_instance_is_a_stranger
                a_claim_whose_term_was_released_is_told_that_it_is_over
                a_claim_whose_term_ran_out_is_told_that_it_is_over
                naming_an_ended_term_replaces_it_with_a_new_one
                naming_a_term_that_is_not_the_listed_one_replaces_nothing
                a_grant_names_the_term_before_and_how_it_ended
                an_abandoned_claim_is_cleaned_up
                abandoning_a_claim_that_has_no_term_changes_nothing
                leases_do_not_touch_each_other
            }
            holding {
                who_has_a_lease_is_told_in_a_word
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
                a_publication_can_be_read_by_anybody
                a_publication_outlives_its_term
            }
            handover {
                a_lease_is_handed_to_the_named_instance_under_a_new_token
                the_sender_of_a_hand_over_can_do_nothing_more
                an_offer_cannot_be_used_before_it_is_taken_up
                only_the_named_instance_can_take_up_an_offer
                an_offer_is_taken_up_by_one_claim_only
                a_taken_up_offer_lasts_for_a_ttl_and_not_for_the_window
                an_offer_that_nobody_takes_up_ends_with_its_window
                what_is_left_of_an_offer_is_its_window
                a_receiver_may_decline
                a_repeated_hand_over_changes_nothing
                a_lease_can_be_handed_on_and_on
            }
            late {
                nothing_of_a_released_term_touches_the_next_holder
                nothing_of_an_expired_term_touches_the_next_holder
                nothing_of_a_released_term_touches_the_next_one_of_the_same_holder
                nothing_of_a_handed_over_term_touches_the_receiver
                nothing_of_a_deposed_term_touches_its_taker
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
                what_is_left_of_a_lease_only_shrinks
                a_lease_with_little_left_is_still_held
                one_lease_running_out_does_not_end_another
                a_clock_set_back_keeps_no_lease_for_ever
                a_clock_set_back_makes_nobody_wait_who_need_not
                a_clock_set_ahead_ends_leases_and_breaks_nothing
            }
            foreign {
                a_foreign_lease_is_respected
                a_foreign_lease_ends_with_its_ttl
                a_foreign_lease_without_a_ttl_is_reported_as_stuck
                what_is_left_of_a_foreign_lease_is_what_it_says
                a_foreign_holder_can_be_shown_whatever_it_wrote
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
                a_clients_high_water_raises_the_floor_for_everybody
                a_handed_over_lease_has_a_token_above_the_floor
                the_floor_is_never_lowered
                large_tokens_are_exact_to_the_last_one
                without_a_larger_token_nothing_is_handed_over
                a_spoilt_token_blocks_its_own_lease_alone
                forgetting_a_spoilt_token_leaves_the_floor_where_it_was
                tokens_grow_across_a_flush
                tokens_grow_across_a_flush_that_nobody_remembers
                tokens_grow_across_a_flush_with_the_clock_set_back
                tokens_grow_when_the_clock_is_set_back
                tokens_grow_across_a_restart_with_older_data
            }
            namespace {
                entering_again_with_nothing_lost_changes_nothing
                a_cut_connection_loses_nothing
                a_cut_connection_says_that_it_is_closed
                a_connection_that_is_refused_something_is_not_closed
                a_connection_does_not_outlive_a_restart
                a_missing_record_is_replaced_by_a_newer_one_and_closes
                an_older_generation_than_remembered_is_replaced_and_closes
                a_newer_generation_is_adopted_and_never_written_over
                a_restarted_server_closes_and_surviving_leases_stay_renewable
                a_restart_closes_once_and_not_for_everybody_who_comes_later
                a_newcomer_notices_a_restart_as_well
                a_durable_store_closes_nothing_after_a_restart
                a_durable_instance_does_not_hide_a_restart_from_the_others
                even_a_durable_store_closes_when_its_record_is_missing
                even_a_durable_store_closes_when_tokens_went_back
                even_bootstrap_closes_for_whoever_remembers_the_namespace
                data_that_was_replaced_is_not_the_data_that_was_entered
                even_a_durable_store_closes_when_its_data_was_replaced
                a_token_that_the_store_has_forgotten_closes
                a_new_generation_is_announced
                a_restored_backup_is_as_good_as_a_loss
                a_generation_carries_the_stamp_of_whoever_minted_it
                two_generations_with_one_number_are_told_apart
            }
            newcomer {
                a_newcomer_alone_on_an_old_server_starts_at_once
                bootstrap_opens_a_new_namespace_however_young_the_server
                bootstrap_changes_nothing_about_a_namespace_that_exists
                a_newcomer_closes_when_others_are_listening
                bootstrap_does_not_open_over_listeners
                a_newcomer_closes_when_the_record_was_erased
                bootstrap_opens_what_was_closed_only_for_the_age_of_the_server
                listeners_close_nothing_once_there_is_a_record
                a_newcomer_closes_when_the_server_is_young
                a_young_server_closes_for_what_is_missing_of_the_longest_ttl
                the_closing_of_a_newcomer_ends
                a_newcomer_finds_what_others_have_written
                a_newcomers_generation_is_above_what_others_remember
            }
            closing {
                a_closing_is_over_after_the_longest_ttl
                what_is_left_of_a_closing_only_shrinks
                entering_again_does_not_make_a_closing_longer
                a_clock_set_back_does_not_make_a_closing_longer_than_the_longest_ttl
                entering_after_a_clock_was_set_back_finds_no_longer_closing
                a_clock_set_back_closes_nothing_that_is_open
                every_answer_about_a_lease_tells_the_longest_ttl
                nothing_is_granted_in_a_closed_namespace
                a_missing_record_grants_nothing_until_somebody_enters
                a_generation_minted_by_another_must_be_entered_first
                entering_raises_nothing
                a_longer_ttl_of_a_claim_raises_the_longest
                a_longer_ttl_of_a_renewal_raises_the_longest
                a_longer_ttl_for_an_offer_raises_the_longest
                another_longest_ttl_is_announced
                a_released_lease_is_no_longer_relied_on
                what_was_released_makes_no_quarantine_after_a_restart_long
                a_lease_that_was_handed_over_is_no_longer_relied_on_by_its_sender
                a_claim_repeated_counts_once
                a_term_replaced_by_its_own_process_counts_once
                an_expired_lease_is_no_longer_relied_on
                an_expired_lease_is_not_waited_for_after_a_restart
                however_many_ttls_there_are_each_counts_and_none_is_left_behind
                whoever_waits_does_not_shorten_a_lease
                whoever_remembers_longer_leases_makes_a_quarantine_longer
                whoever_only_assumes_longer_leases_does_not
                an_instance_that_remembers_corrects_what_a_newcomer_assumed
                of_those_who_only_assume_the_longest_counts
                what_is_remembered_of_the_longest_ttl_survives_a_loss
                a_quarantine_is_remembered_while_it_lasts
                a_quarantine_says_why
                an_operator_ends_a_quarantine
                an_observer_leaves_no_trace
            }
            takeover {
                a_holder_without_progress_is_taken_over
                a_deposed_holder_is_told_that_it_stalled
                a_repeated_take_over_is_the_same_term_with_what_is_left_to_wait
                a_holder_that_made_progress_is_not_taken_over
                a_renewal_alone_is_not_progress
                whoever_has_not_renewed_yet_is_not_taken_over
                a_new_holder_is_not_deposed_for_its_predecessor
                a_taker_that_has_to_wait_is_not_deposed_for_it
                a_take_over_of_a_free_lease_is_an_ordinary_grant
                the_wait_for_a_deposed_holder_outlives_a_taker_that_releases
                the_wait_for_a_deposed_holder_outlives_a_taker_that_runs_out
                the_wait_for_a_deposed_holder_outlives_a_taker_that_hands_over
                the_wait_for_a_deposed_holder_outlives_a_taker_that_is_deposed
            }
            revoke {
                a_revoked_holder_is_told_so
                a_revoked_lease_stays_taken_until_its_holder_lets_go
                a_revoked_lease_is_free_after_its_ttl
                a_revoked_claim_does_not_go_on
                a_revoked_term_may_be_replaced_by_whoever_has_ended_it
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
                what_is_asked_of_a_holder_is_announced
                a_publication_is_announced
                the_first_heartbeat_is_announced_and_the_next_ones_are_not
                a_leave_is_announced
                a_changed_index_is_announced
                what_is_refused_is_not_announced
                every_listener_hears_every_announcement_in_order
                every_kind_of_announcement_arrives_as_it_was_sent
                nothing_is_lost_when_a_listener_stops_waiting
                a_listener_learns_that_the_server_was_restarted
                a_listener_learns_that_its_connection_was_cut
            }
            fleet {
                nobody_is_alive_at_first
                whoever_beats_is_a_member
                a_later_heartbeat_replaces_the_earlier_one
                whoever_stops_beating_is_gone_after_its_ttl
                whoever_goes_on_beating_stays
                whoever_leaves_is_gone_at_once
                members_and_leases_know_nothing_of_each_other
                groups_know_nothing_of_each_other
                who_joins_or_leaves_a_group_is_announced_with_it
                a_heartbeat_may_travel_with_any_question_about_a_lease
                a_large_fleet_is_listed_completely
                an_index_lists_what_was_added_and_not_removed
                indexes_do_not_touch_each_other
                a_flush_forgets_members_and_indexes
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
                entries_of_a_log_stand_in_order_and_only_so_many
                an_entry_that_is_added_again_is_the_same_entry
                whose_term_is_over_adds_nothing
                a_record_is_written_with_an_entry_or_neither_is
            }
            sessions {
                a_session_is_made_changed_listed_and_deleted
                whoever_has_not_seen_what_a_session_is_does_not_change_it
                a_session_that_is_so_already_may_be_written_again
                a_change_of_a_session_is_announced
            }
            forgetting {
                what_is_forgotten_leaves_nothing_behind_but_its_token
                what_is_in_use_is_not_forgotten
                a_session_that_is_deleted_is_listed_as_gone
            }
            notes {
                notes_are_listed_as_they_were_written_the_latest_last
                only_the_latest_notes_are_listed
                only_so_many_notes_are_kept
            }
            storm {
                of_two_hundred_claims_on_one_lease_one_wins_every_round
                of_two_hundred_claims_on_twenty_leases_one_wins_each
                one_claim_sent_two_hundred_times_at_once_is_one_term
                an_offer_in_a_storm_is_taken_up_once
                in_a_storm_of_grants_and_releases_nobody_meets_and_no_token_repeats
                twenty_that_enter_at_once_after_a_loss_agree_on_one_generation
            }
        }
    };
}

macro_rules! list {
    ({} $($group:ident { $($case:ident)+ })+) => {
        vec![$($(
            Case::new(stringify!($group), stringify!($case), |trial| {
                Box::pin(async move { $group::$case(trial).await.into_verdict() })
            }),
        )+)+]
    };
}

/// Every case, in the order of the list.
pub fn cases() -> Vec<Case> {
    crate::__conformance_cases!([list] {})
}
