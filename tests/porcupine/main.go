// Checks with Porcupine whether a history of requests for single keys is linearizable: whether all requests could have
// happened one after the other, each at one moment between its beginning and its answer.
//
// Input: one JSON object per line, one for each request. Output: "linearizable", "undecided" (the time was up), or
// "not linearizable" with the requests at which the longest attempt ended.
// Called by tests/it/support/history.rs, which describes the members.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// The longest time of a check.
const patience = 2 * time.Minute

// A request with its answer.
type request struct {
	Client int    `json:"client"`
	Key    string `json:"key"`
	Call   int64  `json:"call"`
	// 0 if the request was never answered: it may take effect at any later moment, or never.
	Return int64 `json:"return"`
	// get, put, delete, add, touch.
	Op string `json:"op"`
	// "" for no condition, "*" for If-Match: *, "absent" for If-None-Match: *, or the ETag of If-Match.
	Condition string `json:"condition"`
	// The value of a put.
	Value string `json:"value"`
	// The number of an add.
	By int64 `json:"by"`
	// 0 if the outcome is unknown.
	Status int `json:"status"`
	// The ETag of the answer, if it has one.
	Etag string `json:"etag"`
	// The value of the answer.
	Found string `json:"found"`
}

// The state of one key. The ETag is "" after a put whose answer never came, until some answer tells it.
type state struct {
	present bool
	value   string
	etag    string
}

// A number of 64 bits, and whether the text is one.
func number(text string) (*big.Int, bool) {
	parsed, err := strconv.ParseInt(text, 10, 64)
	return big.NewInt(parsed), err == nil
}

func sum(before state, by int64) (string, bool) {
	base := big.NewInt(0)
	if before.present {
		parsed, ok := number(before.value)
		if !ok {
			return "", false
		}
		base = parsed
	}
	total := base.Add(base, big.NewInt(by))
	return total.String(), total.IsInt64()
}

// The state once it is known that the value has this ETag; false if it has another one.
func known(before state, etag string) (state, bool) {
	if !before.present || (before.etag != "" && before.etag != etag) {
		return before, false
	}
	before.etag = etag
	return before, true
}

// Whether the condition can hold, and whether it can fail.
func condition(before state, condition string) (holds, fails bool) {
	switch condition {
	case "":
		return true, false
	case "*":
		return before.present, !before.present
	case "absent":
		return !before.present, before.present
	}
	if !before.present {
		return false, true
	}
	return before.etag == "" || before.etag == condition, before.etag != condition
}

// The state after a change whose condition holds; false if the change does nothing.
func change(before state, in request, etag string) (state, bool) {
	switch in.Op {
	case "put":
		return state{true, in.Value, etag}, true
	case "delete":
		return state{}, before.present
	case "add":
		total, ok := sum(before, in.By)
		return state{true, total, etag}, ok
	case "touch":
		return state{true, before.value, etag}, before.present
	}
	panic("an unknown request: " + in.Op)
}

// The states that a request with this answer can leave.
func step(before state, in request) []interface{} {
	holds, fails := condition(before, in.Condition)
	none := []interface{}{}
	only := func(after state, ok bool) []interface{} {
		if !ok {
			return none
		}
		return []interface{}{after}
	}
	if in.Status == 0 {
		after, changed := change(before, in, "")
		if holds && changed {
			return []interface{}{before, after}
		}
		return only(before, true)
	}
	if in.Status == 412 {
		if in.Etag == "" {
			return only(before, !before.present && fails)
		}
		after, ok := known(before, in.Etag)
		return only(after, ok && fails && in.Etag != in.Condition)
	}
	if in.Op == "get" {
		if in.Status == 404 {
			return only(before, !before.present)
		}
		after, ok := known(before, in.Etag)
		return only(after, ok && before.value == in.Found)
	}
	if !holds {
		return none
	}
	after, changed := change(before, in, in.Etag)
	switch {
	case in.Op == "put":
		return only(after, (in.Status == 204) == before.present)
	case in.Op == "add" && in.Status == 200:
		return only(after, changed && after.value == in.Found)
	case in.Op == "add" && in.Status == 409:
		return only(before, !changed)
	case in.Status == 204:
		return only(after, changed)
	case in.Status == 404:
		return only(before, !changed)
	}
	return none
}

func main() {
	byKey := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var in request
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			fmt.Fprintln(os.Stderr, "a line cannot be read:", err)
			os.Exit(2)
		}
		until := in.Return
		if until == 0 {
			until = math.MaxInt64
		}
		operation := porcupine.Operation{ClientId: in.Client, Input: in, Call: in.Call, Output: nil, Return: until}
		byKey[in.Key] = append(byKey[in.Key], operation)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the history cannot be read:", err)
		os.Exit(2)
	}
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{}} },
		Step: func(before, input, _ interface{}) []interface{} { return step(before.(state), input.(request)) },
	}
	model := nondeterministic.ToModel()
	for key, history := range byKey {
		result, info := porcupine.CheckOperationsVerbose(model, history, patience)
		switch result {
		case porcupine.Ok:
		case porcupine.Unknown:
			fmt.Println("undecided: key", key)
			return
		default:
			fmt.Println("not linearizable: key", key)
			explain(history, info)
			return
		}
	}
	fmt.Println("linearizable")
}

// Prints the end of the longest attempt, and what it could not add.
func explain(history []porcupine.Operation, info porcupine.LinearizationInfo) {
	var longest []porcupine.Operation
	for _, attempts := range info.PartialLinearizationsOperations() {
		for _, attempt := range attempts {
			if len(attempt) > len(longest) {
				longest = attempt
			}
		}
	}
	fmt.Println("these requests can follow each other, at last:")
	done := map[request]bool{}
	for position, operation := range longest {
		done[operation.Input.(request)] = true
		if position >= len(longest)-8 {
			fmt.Printf("  %+v\n", operation.Input)
		}
	}
	var rest []porcupine.Operation
	for _, operation := range history {
		if !done[operation.Input.(request)] {
			rest = append(rest, operation)
		}
	}
	sort.Slice(rest, func(i, j int) bool { return rest[i].Call < rest[j].Call })
	fmt.Println("none of these can be next:")
	for position, operation := range rest {
		if position < 8 {
			fmt.Printf("  %+v\n", operation.Input)
		}
	}
}
